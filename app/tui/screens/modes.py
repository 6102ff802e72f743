"""The names of the screens that have a key of their own, which Textual calls modes."""

CHAT = "chat"
PERFORMANCE = "performance"
THREADS = "threads"
MODELS = "models"
DOCTOR = "doctor"
CONVERSATIONS = "conversations"

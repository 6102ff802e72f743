"""From messages to token ids: chat templates, and the exact ids of a conversation."""

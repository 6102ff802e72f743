"""Thread counts and memory modes: the tuned choice, saved and shown."""

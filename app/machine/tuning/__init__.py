"""Thread counts and memory modes: the choice made, remembered and shown."""

"""The chat: its screen, the prompt, and what messages can do."""

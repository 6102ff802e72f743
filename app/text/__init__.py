"""Text that reaches a terminal: cleaned, measured, abbreviated."""

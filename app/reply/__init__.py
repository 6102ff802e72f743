"""Text of replies, taken apart."""

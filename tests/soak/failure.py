"""The exception that ends a long run."""


class Failed(Exception):
    """Something did not hold; the message says what."""

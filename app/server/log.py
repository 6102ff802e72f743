"""The log of ``jalopy serve``: lines on stderr, without any text of requests or replies."""

from app.program.refusals import say


def log(line: str) -> None:
    """Write a line to the log."""
    say(f"jalopy serve: {line}")

"""The log of ``jalopy serve``: lines on stderr, without a word of what is said in requests."""

from app.program.refusals import say


def log(line: str) -> None:
    """Write a line of the log."""
    say(f"jalopy serve: {line}")

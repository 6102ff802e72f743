"""What there is of the running reply: the answer, and the thinking before it."""

from __future__ import annotations

from app.conversations.thinking import Thinking


class GrowingReply:
    """Text that only grows, until it begins again.

    Attributes:
        thinking: once it is over; None where there is none.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._thought_pieces: list[str] = []
        self.thinking: Thinking | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    @property
    def thought(self) -> str:
        """The thinking so far."""
        return "".join(self._thought_pieces)

    def add_text(self, text: str) -> None:
        """More of the answer."""
        self._pieces.append(text)

    def add_thought(self, text: str) -> None:
        """More of the thinking."""
        self._thought_pieces.append(text)

    def end_thinking(self, tokens: int, duration_s: float, is_closed: bool) -> Thinking | None:
        """The thinking is over; returns it, or None where there was nothing in it."""
        thought = self.thought
        self.thinking = Thinking(thought, tokens, duration_s, is_closed) if thought.strip() else None
        return self.thinking

    def begin_again(self) -> None:
        """Nothing has come; a reply that goes on comes again from its beginning."""
        self._pieces.clear()
        self._thought_pieces.clear()
        self.thinking = None

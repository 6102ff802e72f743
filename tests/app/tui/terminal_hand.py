"""Scripted terminal input with a scripted clock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from textual.events import Key, Paste
from textual.message import Message

from app.tui.terminal_input import TerminalInput


class Hand:
    """Terminal input with a clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.input = TerminalInput(lambda: self.now_s)
        self.messages: list[Message] = []

    def send(self, *chunks: bytes) -> Hand:
        for chunk in chunks:
            self.messages += self.input.feed(chunk)
            self.messages += self.input.tick()
        return self

    def wait(self, seconds: float) -> Hand:
        self.now_s += seconds
        self.messages += self.input.tick()
        return self

    @property
    def pasted(self) -> list[str]:
        return [message.text for message in self.messages if isinstance(message, Paste)]

    @property
    def keys(self) -> list[str]:
        return [message.key for message in self.messages if isinstance(message, Key)]

    @property
    def typed(self) -> str:
        return "".join(
            message.character or "" for message in self.messages if isinstance(message, Key)
        )


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]

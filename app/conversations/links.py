"""Messages of a log, each with a number that stands for it and all before it: where a line is lost, the rest is known.

A record names the number of the messages that it was written behind, so it is known whether one is missing behind a
damaged line. Where that number is known, none is, and what stood behind those messages had been replaced; where it is
not, a gap is left: messages that only say that they are missing, so that both sides still take turns.
"""

from __future__ import annotations

import zlib

from app.conversations.conversation import ChatMessage, Conversation, Role

NOTHING = 0
"""The number of no messages."""
_LARGEST = (1 << 32) - 1


def linked(link: int, checksum: int) -> int:
    """Return the number of the messages of one number and one more, whose line has this checksum."""
    return zlib.crc32(checksum.to_bytes(4, "little"), link)


def link_in(value: object) -> int | None:
    """Return what a record says; None where it was written by a version that knew no such numbers."""
    return value if type(value) is int and 0 <= value <= _LARGEST else None


class LinkedMessages:
    """The messages of a conversation that is being read. ``links``: the number of the first n messages, for every n."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.links = [NOTHING]
        self._places = {NOTHING: 0}
        self._first_gap: int | None = None

    @property
    def has_gap(self) -> bool:
        """Whether something unknown stands between the messages: nobody knows how many were there."""
        return self._first_gap is not None

    def add(self, message: ChatMessage, checksum: int) -> None:
        """Append one."""
        self._conversation.messages.append(message)
        self._link(linked(self.links[-1], checksum))

    def cut(self, n_messages: int) -> None:
        """Keep the first ones only."""
        self._conversation.cut(n_messages)
        if self._first_gap is not None and self._first_gap >= n_messages:
            self._first_gap = None
        for n in range(n_messages + 1, len(self.links)):
            if self._places.get(self.links[n]) == n:
                del self._places[self.links[n]]
        del self.links[n_messages + 1 :]

    def place_of(self, link: int) -> int | None:
        """Return how many messages have this number; None where that is not known."""
        return self._places.get(link)

    def has(self, place: int, checksum: int) -> bool:
        """Whether the message at ``place`` (messages before it) is already the one with this checksum."""
        return place + 1 < len(self.links) and self.links[place + 1] == linked(self.links[place], checksum)

    def leave_gap(self, role: Role, link: int | None) -> None:
        """Something unknown stood here, before a message of this side that was written behind this number."""
        if self._first_gap is None:
            self._first_gap = len(self._conversation.messages)
        missing = [Role.ASSISTANT] if self._conversation.awaits_reply else []
        if role is Role.ASSISTANT:
            missing.append(Role.USER)
        for side in missing or [Role.USER, Role.ASSISTANT]:
            self.add(ChatMessage(side, "", is_missing=True), 0)
        if link is not None:
            self._places.pop(self.links.pop())
            self._link(link)

    def _link(self, link: int) -> None:
        self.links.append(link)
        self._places[link] = len(self.links) - 1

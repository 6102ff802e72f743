"""The newest reply and the one before, to compare the types of their KV caches.

Another type takes effect between two replies, so no single reply shows the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice
from app.text.record import record


@record
class WrittenReply:
    """Times of the tokens of a reply, and the choice that wrote them."""

    times_s: Sequence[float]
    choice: TunedChoice
    is_mixed: bool = False
    """Whether the choice was changed while the reply was written."""


class LastReplies:
    """The newest reply and the one before; each is None if there is none."""

    def __init__(self) -> None:
        self.newest: WrittenReply | None = None
        self.previous: WrittenReply | None = None

    def follow(self, times_s: Sequence[float], choice: TunedChoice, is_running: bool) -> None:
        """Look at a reply while it is written.

        Args:
            times_s: times of its tokens, the same list for the whole reply.
            choice: the choice in use.
        """
        newest = self.newest
        if newest is None or newest.times_s is not times_s:
            self.previous = newest
            self.newest = WrittenReply(times_s, choice)
        elif is_running and newest.choice != choice:
            self.newest = replace(newest, is_mixed=True)

    def kv_change(self) -> ChoiceChange | None:
        """Return the change of the KV cache between the two replies; None if there was none."""
        previous = self.previous
        newest = self.newest
        if previous is None or newest is None or not newest.times_s or not previous.times_s:
            return None
        types = previous.choice.kv_type, newest.choice.kv_type
        if not all(types) or types[0] == types[1]:
            return None
        begin_s = previous.times_s[-1]
        return ChoiceChange(begin_s, newest.times_s[0], previous.choice, newest.choice)

"""Speeds of the replies before and after a change of the KV cache's type."""

from __future__ import annotations

from app.text import figures


class KvSpeeds:
    """Compares the reply after a change of the KV cache with the one before.

    The change takes effect between two replies, so a running reply still counts as before.
    """

    def __init__(self) -> None:
        self._last_tps = 0.0
        """Speed of the last reply; 0 if it was too short."""
        self._before: tuple[str, float] | None = None
        """Type before the change, and its speed; None if nothing is to be compared."""
        self._is_running = False
        """Whether the reply of that type was still running at the change."""

    def begin(self, kv_type: str, is_running: bool) -> None:
        """Remember the type in use before a change."""
        if self._before is None:
            self._before = kv_type, self._last_tps
            self._is_running = is_running

    def end_reply(self, kv_type: str, tps: float) -> str:
        """Take the speed of a reply, 0 if it was too short.

        Args:
            kv_type: type in use now.

        Returns:
            A line that compares both types after the first reply with the new one; "" otherwise.
        """
        before = self._before
        self._last_tps = tps
        if before is None:
            return ""
        if self._is_running:
            self._is_running = False
            self._before = before[0], tps
            return ""
        earlier_type, earlier_tps = before
        if earlier_type == kv_type or not earlier_tps:
            self._before = None
            return ""
        if not tps:
            return ""
        self._before = None
        return (
            f"KV cache {kv_type}: {figures.rate(tps)} tok/s "
            f"({earlier_type}: {figures.rate(earlier_tps)}; single replies differ by some per cent)"
        )

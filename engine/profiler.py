"""Profile of one session: starts, reads and stops the timing of its operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.plan.profile import PhaseTime, Profile

if TYPE_CHECKING:
    from engine.pipeline import Pipeline


class Profiler:
    """Times the operations of a pipeline, and the time between the runs of a reply.

    Nothing is timed until ``start``.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._profile: Profile | None = None

    @property
    def is_running(self) -> bool:
        """Whether operations are timed now."""
        return bool(self._pipeline.profile)

    def start(self) -> None:
        """Start timing every operation, with all times at zero."""
        if self._profile is None:
            self._profile = Profile(
                {name: plan.operations for name, plan in self._pipeline.plans.items()}
            )
        self._profile.reset()
        self._pipeline.profile = self._profile.tables

    def read(self) -> dict[str, list[PhaseTime]]:
        """Return the phases so far by the plan's name; empty if nothing is timed.

        ``"decode"`` is for the tokens of a reply. ``"small batch"`` and ``"block"`` are for a
        prompt, ``"small batch last"`` and ``"block last"`` for its last token.
        """
        if self._profile is not None and self.is_running:
            return self._profile.phases()
        return {}

    def stop(self) -> dict[str, list[PhaseTime]]:
        """Stop timing; returns the same as ``read``."""
        phases = self.read()
        self._pipeline.profile = {}
        return phases

    def discard(self) -> None:
        """Stop timing and drop the tables, which are for plans that no longer exist."""
        self._profile = None
        self._pipeline.profile = {}

    def leave_engine(self) -> None:
        """Record that a token of a reply goes to the caller."""
        if self._profile is not None and self.is_running:
            self._profile.leave()

    def enter_engine(self) -> None:
        """Record that the caller asks for the next token of a reply."""
        if self._profile is not None and self.is_running:
            self._profile.enter()

"""All measurements of a sweep: thread counts on the conversation's own session, and memory options."""

from __future__ import annotations

from engine.tuning.option_trials import KVTrials, WeightTrials
from engine.tuning.options import OptionTrials
from engine.tuning.report import WEIGHTS
from engine.tuning.samples import SessionSamples


class SessionTrials(SessionSamples):
    """Measures on a session; see ``engine.tuning.sweep.Trials``."""

    def options(self, part: str) -> OptionTrials:
        """Return the trials of the memory options of one part."""
        if part == WEIGHTS:
            return WeightTrials(self._model, self)
        return KVTrials(self._model, self._session, self._clock)

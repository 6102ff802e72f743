"""Options of the engine thread: functions that open models, sample, measure and remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.local.context_room import MIN_REPLY_TOKENS
from app.machine.sensors.reply_history import ReplyHistory
from app.machine.sensors.tuning_conditions import ConditionsWatch
from app.machine.tuning.past_runs import PastRuns
from app.program.settings import Settings, built_in_settings
from app.text.record import record

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from app.backend.local.saved_states import StateFiles
    from app.backend.protocol import Backend
    from app.forms.answer_form import AnswerForm
    from app.machine.sensors.energy import EnergyReading
    from app.tools.toolbox import ToolBox
    from engine import Model, Sampling, Session
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.prompt.thinking import ThinkingMode
    from engine.tuning.lookahead_trials import Lookahead


@record
class ChatOptions:
    """How the engine thread opens models and writes replies.

    The engine thread calls all functions but ``glance_at_model``: they may import the engine.
    """

    open_model: Callable[[Path, Callable[[Any], None]], Model]
    """Opens a model and reports ``Progress`` records of the engine to the second argument."""
    sampling: Callable[[Mapping[str, float], Model, ThinkingMode], Sampling]
    """Returns the sampling of a reply, given the chosen parameters and the mode of thinking."""
    glance_at_model: Callable[[Path], object] = str
    """Raises if a path leads to no model file. Called in a thread of its own."""
    check_model: Callable[[Path], object] = str
    """Raises if a file cannot be opened; called before the present model is closed."""
    settings: Settings = field(default_factory=built_in_settings)
    """Settings at the start of the program."""
    size_context: Callable[[Model, ChatPrompt], int | None] = lambda model, chat: None
    """Returns the context size for a single prompt; None for the usual size."""
    form: AnswerForm | None = None
    """Form of all replies; None if each conversation has its own, or none."""
    tools: ToolBox | None = None
    """Tools of the user's servers; None if no tools are used."""
    recalls_choices: bool = False
    """Whether what ``/set keep`` and ``/system keep`` saved for a model is used."""
    least_reply_tokens: int = MIN_REPLY_TOKENS
    """Tokens that a prompt must leave free for its reply."""
    emits_pieces: bool = False
    """Whether every piece of a reply is also reported as the model wrote it."""
    on_opened: Callable[[Path], str | None] = lambda path: None
    """Called when a model is open; returns a line to show, or None."""
    open_history: Callable[[], ReplyHistory] = ReplyHistory
    """Returns the speeds of earlier replies."""
    open_runs: Callable[[], PastRuns] = lambda: PastRuns(None)
    """Returns the last searches for the best threads."""
    open_meter: Callable[[], Callable[[float], EnergyReading | None]] = lambda: lambda now_s: None
    """Returns a function that reads the energy used up to a time; the default measures none."""
    examine: Callable[[Model | None, Session | None, str, Callable[[Any], None]], Any] | None = None
    """Measures for the doctor, given model, session, type of the KV cache and a function that takes
    progress."""
    watch_conditions: Callable[[], ConditionsWatch] = lambda: ConditionsWatch(None)
    """Returns a watch on the machine for measurements; the default watches nothing."""
    try_lookahead: Callable[[Model, Session, Callable[[], bool], bool], Mapping[str, Lookahead]] = (
        lambda *_: {}
    )
    """Tunes the memory prefetch of kernels, after a reply if nothing is requested, and after a
    search for threads."""
    state_files: Callable[[], StateFiles | None] = lambda: None
    """Returns how the state of the KV cache is saved; None saves nothing."""
    remote: Callable[[EngineLink, ChatOptions], Backend] | None = None
    """Returns the backend for servers; None if no servers are used."""

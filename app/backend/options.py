"""Options of the engine's thread: functions that open models, sample, measure and remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.backend.local.context_room import MIN_REPLY_TOKENS
from app.machine.sensors.reply_history import ReplyHistory
from app.machine.sensors.tuning_conditions import ConditionsWatch
from app.program.settings import Settings, built_in_settings
from app.text.record import record

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from app.backend.local.saved_states import StateFiles
    from app.backend.protocol import Backend
    from app.forms.choice import FormChoice
    from app.session.generation import GenerationChoice
    from app.tools.toolbox import ToolBox
    from engine import Model, Sampling, Session
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.prompt.thinking_mode import ThinkingMode
    from engine.tuning.lookahead_trials import Lookahead


@record
class ChatOptions:
    """How the engine's thread opens models and writes replies; see the settings of the same
    names."""

    open_model: Callable[[Path, Callable[[Any], None]], Model]
    """Opens a model and calls the second argument with the engine's ``Progress`` records."""
    sampling: Callable[[Model, ThinkingMode], Sampling]
    """Called in the engine's thread, because building it imports the engine, for each reply and how
    it thinks."""
    glance_at_model: Callable[[Path], object] = str
    """Raises where a path leads to no model file; called in a thread of its own before anything is
    asked about it."""
    check_model: Callable[[Path], object] = str
    """Raises where a file cannot be opened, before the present model is closed for it."""
    settings: Settings = field(default_factory=built_in_settings)
    """How large the context is, how its cache is kept, and how much the model thinks."""
    size_context: Callable[[Model, ChatPrompt], int | None] = lambda model, chat: None
    """Called in the engine's thread before the session is opened: how large it needs to be. For a
    single prompt."""
    form: FormChoice | None = None
    """The form of replies; None for any, for good."""
    tools: ToolBox | None = None
    """Tools of the user's servers; None where none are used."""
    generation: GenerationChoice | None = None
    """Parameters chosen with ``/set``, in place of those of the settings; its ``sampling`` is the
    one above."""
    least_reply_tokens: int = MIN_REPLY_TOKENS
    """Room that must be left for a reply before a prompt is taken."""
    emits_pieces: bool = False
    """Whether every piece of a reply is reported as the model wrote it."""
    on_opened: Callable[[Path], str | None] = lambda path: None
    """Called in the engine's thread when a model is open, which may be remembered; returns a line
    to show, if any."""
    open_history: Callable[[], ReplyHistory] = ReplyHistory
    """Called in the engine's thread, for the speeds of earlier replies."""
    examine: Callable[[Model | None, Session | None, str, Callable[[Any], None]], Any] | None = None
    """Measures for the doctor, given model, session, type of the KV cache and a report of
    progress."""
    watch_conditions: Callable[[], ConditionsWatch] = lambda: ConditionsWatch(None)
    """Makes the watch on the machine during measurements; the default watches nothing."""
    try_lookahead: Callable[[Model, Session, Callable[[], bool], bool], Mapping[str, Lookahead]] = (
        lambda *_: {}
    )
    """Called in the engine's thread once a reply is written and nothing is asked, and after a
    search for threads (again): tunes the kernels."""
    state_files: Callable[[], StateFiles | None] = lambda: None
    """Called in the engine's thread: how the state of the cache is kept; None keeps none."""
    remote: Callable[[EngineLink, ChatOptions], Backend] | None = None
    """Called in the engine's thread: makes who talks to servers; None where none are used."""

"""Options of the engine thread, made from the settings, for the chat and for shell commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from app.backend.engine_link import EngineLink
from app.backend.local import engine_access
from app.backend.options import ChatOptions
from app.backend.protocol import Backend
from app.forms.answer_form import AnswerForm
from app.machine.sensors.energy import EnergyMeter
from app.machine.sensors.low_power import is_on_battery
from app.machine.sensors.reply_history import ReplyHistory
from app.machine.sensors.tuning_conditions import watch_machine
from app.machine.tuning.past_runs import PastRuns
from app.models.library.choose_model import remember_opened
from app.program import paths
from app.program.settings import Settings, ToolServerSetting
from app.session import model_sampling
from app.tools.built_in.catalog import make_built_in
from app.tools.mcp.pipe import Pipe
from app.tools.mcp.server import ServerLimits, ToolServer
from app.tools.toolbox import ToolBox


def chat_options(settings: Settings) -> ChatOptions:
    """Return the options of the chat."""
    return replace(
        shell_options(settings, keeps_states=True, tools=tool_box(settings)),
        recalls_choices=True,
        glance_at_model=engine_access.glance_at_model,
        on_opened=partial(
            remember_opened,
            directories=settings.model_directories,
            draft_model=settings.draft_model,
        ),
        open_history=lambda: ReplyHistory(paths.speeds_file()),
        open_meter=lambda: EnergyMeter(is_exact=True).read,
        open_runs=lambda: PastRuns(paths.tunings_file()),
        examine=partial(_examine, settings),
        try_lookahead=engine_access.try_lookahead,
        watch_conditions=watch_machine,
        state_files=partial(engine_access.state_files, settings, partial(may_read_ahead, settings)),
        emits_pieces=False,
    )


def shell_options(
    settings: Settings,
    keeps_states: bool,
    form: AnswerForm | None = None,
    tools: ToolBox | None = None,
) -> ChatOptions:
    """Return the options of a shell command, which neither measures nor reads ahead.

    Args:
        keeps_states: whether to save the state of the KV cache for the next start.
        form: form of all replies; None if each conversation has its own, or none.
        tools: tools that the model may use; None for none.
    """
    if keeps_states:
        state_files: Callable[[], Any] = partial(engine_access.state_files, settings)
    else:
        state_files = _no_state_files
    return ChatOptions(
        open_model=partial(engine_access.open_model, settings),
        sampling=model_sampling.make_sampling,
        form=form,
        check_model=engine_access.check_model,
        settings=settings,
        tools=tools,
        state_files=state_files,
        remote=_remote_backend,
        emits_pieces=True,
    )


def _no_state_files() -> None:
    return None


def tool_box(settings: Settings, can_ask: bool = True) -> ToolBox:
    """Return the tools of the settings; ``can_ask`` says whether the user can confirm calls."""
    return ToolBox(settings.tools, _tool_server, can_ask, make_built_in)


def _tool_server(setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> ToolServer:
    limits = ServerLimits(start_s=setting.timeout_s, call_s=setting.timeout_s)
    if setting.url:
        from app.backend.remote.tool_address import make_tool_address  # imports an HTTP client

        return ToolServer(setting.name, make_tool_address(setting), limits, is_stopped)
    return ToolServer(
        setting.name, Pipe(setting.command, dict(setting.environment)), limits, is_stopped
    )


def may_read_ahead(settings: Settings) -> bool:
    """Whether the engine may read a message before it is sent."""
    return _is_on(settings.prefill_while_typing)


def may_write_titles(settings: Settings) -> bool:
    """Whether models may write titles for conversations."""
    return _is_on(settings.write_titles)


def _is_on(setting: str) -> bool:
    return setting == "on" or (setting == "auto" and not is_on_battery())


def _remote_backend(link: EngineLink, options: ChatOptions) -> Backend:
    from app.backend.remote.backend import RemoteBackend  # imports an HTTP client

    return RemoteBackend(link, options)


def _examine(settings: Settings, *state: Any) -> Any:
    from app.machine.doctor.examine import examine_machine  # imports numpy

    return examine_machine(settings, *state)

"""Tools in the engine's thread: told to the model before a turn, found in its reply, run between
two turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink
from app.backend.local.model import LocalModel
from app.backend.options import ChatOptions
from app.backend.status import Activity
from app.session.events import PromptStopped, ToolsAnswered, ToolsNotice
from app.text.clean_text import clean_line
from app.tools.mcp.transport import StoppedError
from app.tools.toolbox import REFUSED
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.split import CallSplitter

if TYPE_CHECKING:
    from engine import Model
    from engine.tokenizer import Tokenizer

Within = Callable[[str, int], str]
"""Cuts a text to a number of tokens."""

RESULT_SHARE = 4
"""The results of a round take one part in this many of the context at most."""
_NO_TOOLS = (
    "answers come without tools: the chat template of {} has none, or in a format that is not known"
)
_HAS_FORM = "answers come without tools: they follow a schema (/schema off ends that)"


class EngineTools:
    """Uses the tools of the options, if there are any."""

    def __init__(self, link: EngineLink, options: ChatOptions) -> None:
        self._link = link
        self._box = options.tools
        self._form = options.form
        self._told: set[str] = set()
        """Why there are no tools, as it was said: once for each model, and each time that a form
        begins."""

    def known(self, model: Model) -> Sequence[Mapping[str, Any]]:
        """Return the tools of the servers that run already, for a model that reads a
        conversation."""
        if self._box is not None:
            tools = self._box.definitions
        else:
            tools = ()
        if tools and model.chat_template.call_format is not None:
            return tools
        return ()

    def may_change(self, model: Model) -> bool:
        """Whether the next prompt may tell of other tools than the last: then nothing of it can be
        read ahead."""
        return (
            self._box is not None
            and self._box.starts_next
            and model.chat_template.call_format is not None
        )

    def offer(self, local: LocalModel) -> bool:
        """Let the model know the tools; servers that are needed start.

        False if the user stopped that.
        """
        model = local.model
        has_none = model.chat_template.call_format is None
        offered = self.started(_NO_TOOLS.format(clean_line(model.name, 60)) if has_none else "")
        if offered is None:
            return False
        local.use_tools(offered)
        return True

    def started(self, why_not: str = "") -> Sequence[Mapping[str, Any]] | None:
        """Return the tools of the servers that are on, which start where needed; None if the user
        stopped that.

        ``why_not``: why this model can have none, which is said once.
        """
        if self._box is None:
            return ()
        offered: Sequence[Mapping[str, Any]] = ()
        if self._form is not None and self._form.form is not None:
            why_not = why_not or _HAS_FORM
        else:
            self._told.discard(_HAS_FORM)
        if not self._box.is_on:
            why_not = ""
            self._box.start(self._link.is_stopped, self._tell)  # ends those that run
        elif not why_not:
            self._show("tool servers")
            try:
                self._box.start(self._link.is_stopped, self._tell)
            except StoppedError:
                self._link.emit(PromptStopped())
                return None
            offered = self._box.definitions
        if why_not and why_not not in self._told:
            self._told.add(why_not)
            self._link.emit(ToolsNotice(why_not))
        return offered

    def splitter(self, local: LocalModel) -> CallSplitter | None:
        """Return what takes the calls out of the next reply; None where the model knows no
        tools."""
        how = local.model.chat_template.call_format
        tools = local.chat.tools
        if how is not None and tools:
            return CallSplitter(how, tools)
        return None

    def call(
        self, calls: Sequence[ToolCall], allowed: Collection[str], n_ctx: int, within: Within
    ) -> None:
        """Run calls one after another; what is told to the model is cut to the budget.

        ``n_ctx``: 0 if unknown.
        """
        assert self._box is not None
        budget = self._box.result_tokens
        room = (min(budget, n_ctx // RESULT_SHARE) if n_ctx else budget) // max(1, len(calls))
        results = []
        try:
            for call in calls:
                said = REFUSED
                if call.call_id in allowed:
                    self._show(call.name)
                    said = self._box.call(call, self._tell)
                results.append(CallResult(call.name, within(said, room), call.call_id))
        except StoppedError:
            self._link.emit(PromptStopped())
            return
        self._link.emit(ToolsAnswered(tuple(results)))

    def _show(self, step: str) -> None:
        self._link.update_status(
            activity=Activity.CALLING, step=step, done=0, total=0, since_s=self._link.now_s()
        )

    def _tell(self, line: str) -> None:
        self._link.emit(ToolsNotice(line, is_fault=True))


def within_tokens(tokenizer: Tokenizer, text: str, room: int) -> str:
    """Cut a text to a number of tokens."""
    ids: Sequence[int] = tokenizer.encode(text, bos=False, special=False)
    if len(ids) <= room:
        return text
    return f"{tokenizer.decode(ids[:room])}\n[cut: {room} of {len(ids)} tokens]"

"""Tools in the engine thread: offered before a turn, found in its reply, run between two turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink
from app.backend.local.model import LocalModel
from app.backend.options import ChatOptions
from app.backend.status import Activity
from app.program.refusals import Refusal
from app.session.events import PromptStopped, ToolsAnswered, ToolsNotice
from app.text.clean_text import clean_line
from app.tools.mcp.transport import StoppedError
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.split import CallSplitter

if TYPE_CHECKING:
    from engine import Model
    from engine.tokenizer import Tokenizer

CutText = Callable[[str, int], str]
"""Cuts a text to a number of tokens."""

RESULT_SHARE = 4
"""The results of a round take at most one part in this many of the context."""
_ADVICE_TOKENS = 64
"""Tokens of advice that a result may have after its text."""
_NO_TOOLS = (
    "answers come without tools: the chat template of {} has none, or in a format that is not known"
)
_HAS_FORM = "answers come without tools: they follow a schema (/schema off ends that)"


class EngineTools:
    """Uses the tools of the options, if there are any."""

    def __init__(self, link: EngineLink, options: ChatOptions) -> None:
        self._link = link
        self._toolbox = options.tools
        self._explained: set[str] = set()
        """Reasons why there are no tools that the user knows: once for each model, and whenever a
        form begins."""

    def known(self, model: Model) -> Sequence[Mapping[str, Any]]:
        """Return the tools of servers that already run, if the model can use tools."""
        if self._toolbox is None or model.chat_template.call_format is None:
            return ()
        return self._toolbox.definitions

    def may_change(self, model: Model) -> bool:
        """Return whether the next prompt may have other tools than the last.

        If so, nothing of it can be read ahead.
        """
        return (
            self._toolbox is not None
            and self._toolbox.starts_next
            and model.chat_template.call_format is not None
        )

    def offer(self, local: LocalModel, has_form: bool) -> bool:
        """Describe the tools to the model and start the servers that are needed.

        Returns:
            False if the user stopped that.
        """
        model = local.model
        reason = ""
        if model.chat_template.call_format is None:
            reason = _NO_TOOLS.format(clean_line(model.name, 60))
        tools = self.started(has_form, reason)
        if tools is None:
            return False
        local.use_tools(tools)
        return True

    def started(self, has_form: bool, reason: str = "") -> Sequence[Mapping[str, Any]] | None:
        """Return the tools of the servers that are on, after starting those that do not run.

        Args:
            has_form: whether the reply follows a form, in which calls have no place.
            reason: why the model cannot use tools, which is reported once; empty if it can.

        Returns:
            The tools; None if the user stopped that.
        """
        if self._toolbox is None:
            return ()
        if has_form:
            reason = reason or _HAS_FORM
        else:
            self._explained.discard(_HAS_FORM)
        tools: Sequence[Mapping[str, Any]] = ()
        if not self._toolbox.is_on:
            reason = ""
            self._toolbox.start(self._link.is_stopped, self._report_fault)  # Ends running servers.
        elif not reason:
            self._show("tool servers")
            try:
                self._toolbox.start(self._link.is_stopped, self._report_fault)
            except StoppedError:
                self._link.emit(PromptStopped())
                return None
            tools = self._toolbox.definitions
        if reason and reason not in self._explained:
            self._explained.add(reason)
            self._link.emit(ToolsNotice(reason))
        return tools

    def splitter(self, local: LocalModel, may_call: bool) -> CallSplitter | None:
        """Return what separates tool calls from the next reply; None if the model has no tools.

        Args:
            may_call: whether the prompt offers tools; otherwise the model may know them from before.
        """
        call_format = local.model.chat_template.call_format
        tools = local.chat.tools
        if not may_call:
            tools = tools or self.known(local.model)
        if call_format is None or not tools:
            return None
        return CallSplitter(call_format, tools)

    def call(
        self, calls: Sequence[ToolCall], settled: Mapping[str, str], n_ctx: int, cut: CutText
    ) -> None:
        """Run calls one after another and report their results, cut to the budget.

        Args:
            settled: results of calls that do not run, by their ids.
            n_ctx: size of the context; 0 if unknown.
        """
        if self._toolbox is None:
            raise Refusal("no tools are used here")
        budget = self._toolbox.result_tokens
        if n_ctx:
            budget = min(budget, n_ctx // RESULT_SHARE)
        limit = budget // max(1, len(calls))
        results = []
        try:
            for call in calls:
                text = settled.get(call.call_id)
                if text is None:
                    self._show(call.name)
                    text = cut(self._toolbox.call(call, self._report_fault), limit)
                else:
                    text = cut(text, limit + _ADVICE_TOKENS)
                results.append(CallResult(call.name, text, call.call_id))
        except StoppedError:
            self._link.emit(PromptStopped())
            return
        self._link.emit(ToolsAnswered(tuple(results)))

    def _show(self, step: str) -> None:
        self._link.update_status(
            activity=Activity.CALLING, step=step, done=0, total=0, since_s=self._link.now_s()
        )

    def _report_fault(self, line: str) -> None:
        self._link.emit(ToolsNotice(line, is_fault=True))


def cut_to_tokens(tokenizer: Tokenizer, text: str, limit: int) -> str:
    """Cut a text to a number of tokens."""
    ids: Sequence[int] = tokenizer.encode(text, bos=False, special=False)
    if len(ids) <= limit:
        return text
    return f"{tokenizer.decode(ids[:limit])}\n[cut: {limit} of {len(ids)} tokens]"

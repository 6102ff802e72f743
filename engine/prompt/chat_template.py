"""Messages to prompt text, by the chat template in the model's file.

Handles templates that are missing or unusable; rendering happens in another process
(``engine.prompt.template_process``), since the template is untrusted. Independent of tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import TemplateError, shown
from engine.prompt.template_process import TemplateProcess
from engine.prompt.thinking_mode import ThinkingMode, knows_levels
from engine.prompt.thought_markers import closed_by, mentioned_in, opened_by, parts_of_channels
from engine.prompt.tools.formats import CallFormat, format_of

KEY = "tokenizer.chat_template"
TOOLS_KEY = "tokenizer.chat_template.tool_use"
"""A template of its own for conversations with tools."""

MAX_SOURCE_CHARS = 1 << 18
"""Limit on a template's length in characters; the longest in use have about 20,000."""

CHATML_TAGS = ("<|im_end|>", "<|im_start|>")
_USER_NEEDLE = "qvuserqv"
_SYSTEM_NEEDLE = "qvsystemqv"
_PROBE = {"role": "user", "content": _USER_NEEDLE}
_TOOL_NEEDLE = "qvtoolqv"
_VALUE_NEEDLE = "qvvalueqv"
_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL_NEEDLE,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_BY_DEFAULT = ThinkingMode()
_PRINTS_NOTHING = "does not print the messages"
_MAY_BE_THE_FORM = (_PRINTS_NOTHING, "fails: ")
"""Faults of templates that want their variables in another form; what exceeds limits is not tried
again."""
_OTHER_FORMS: tuple[tuple[list[str] | None, bool], ...] = ((None, True), ([], False), ([], True))
"""Tools, and whether content is a list of parts: templates made for tools alone loop over them."""


@dataclass(frozen=True)
class _Switch:
    """The variables and text by which a template asks for a mode of thinking.

    Attributes:
        variables: for the template.
        opening: text after the generation prompt.
    """

    variables: Mapping[str, Any]
    opening: str


@dataclass(frozen=True)
class _Calls:
    """How a template takes calls of tools.

    Attributes:
        format: of the calls in replies; None where there are no tools.
        has_text_arguments: arguments are JSON text rather than an object.
        are_written: the template prints none: they are part of the message's text.
    """

    format: CallFormat | None
    has_text_arguments: bool = False
    are_written: bool = False


class ChatTemplate:
    """One model's chat format.

    A template that is missing, or fails on a simple conversation, is replaced by ChatML for good;
    ``notice`` says so. A template that fails later, on certain messages, raises: switching formats
    within a conversation would confuse the model.

    Args:
        source: Jinja source, None for ChatML.
        bos_text: spelling of the begin-of-text token.
        eos_text: spelling of the end-of-text token.
        file_name: the model's file, for messages.
        process: renderer to use; None starts one at once and closes it with the template.
        tools_source: Jinja source for conversations with tools; None for the same.
    """

    def __init__(
        self,
        source: str | None,
        bos_text: str = "",
        eos_text: str = "",
        file_name: str = "model",
        process: TemplateProcess | None = None,
        tools_source: str | None = None,
    ) -> None:
        self.source = source
        self._tools_source = tools_source if not _refusal(tools_source) and tools_source else None
        self._calls: _Calls | None = None
        self._specials = {"bos_token": bos_text, "eos_token": eos_text}
        self._file_name = file_name
        self._process = process or TemplateProcess()
        self._owns_process = process is None
        self._notice: str | None = None
        self._supports_system = True
        self._wants_parts = False
        """Whether content is a list of parts; a template that takes text as well gets text."""
        self._tools: list[str] | None = None
        self._switches: dict[ThinkingMode, _Switch] = {}
        self._taken: dict[tuple[str, ...], bool] = {}
        self._probed = False
        refusal = _refusal(source)
        if refusal is not None:
            self._fall_back(refusal)
        else:
            self._start()

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], file_name: str, bos_text: str = "", eos_text: str = ""
    ) -> ChatTemplate:
        """Return the template in a GGUF file's metadata; any fault in it leads to ChatML and a
        ``notice``."""
        return cls(
            metadata.get(KEY), bos_text, eos_text, file_name, tools_source=metadata.get(TOOLS_KEY)
        )

    @property
    def notice(self) -> str | None:
        """One line that says why ChatML is used instead of the file's template, None if it is
        not."""
        self._probe()
        return self._notice

    @property
    def supports_system(self) -> bool:
        """Whether the template has a system role; if not, the system message goes into the first
        user message."""
        self._probe()
        return self._supports_system

    @property
    def knows_levels(self) -> bool:
        """Whether the template takes levels of thinking."""
        return self.source is not None and knows_levels(self.source)

    @property
    def call_format(self) -> CallFormat | None:
        """How the model calls tools; None where the template has no tools, or a format that is not
        known."""
        self._probe()
        if self.source is None:
            return None
        if self._calls is None:
            self._calls = self._find_calls()
        return self._calls.format

    def takes(self, roles: tuple[str, ...]) -> bool:
        """Whether the template prints messages of these roles in this order; many refuse some, or
        leave some out."""
        self._probe()
        if self.source is None:
            return True
        if roles not in self._taken:
            messages = [
                {"role": role, "content": f"qv{role}{at}qv"} for at, role in enumerate(roles)
            ]
            try:
                text = self._render(messages, True, None)
            except TemplateError:
                text = ""
            self._taken[roles] = all(message["content"] in text for message in messages)
        return self._taken[roles]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        now: float | None = None,
        thinking: ThinkingMode = _BY_DEFAULT,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the prompt for a conversation.

        Args:
            messages: each with ``role`` (system, user, assistant, tool) and ``content``; those with
                calls also with ``tool_calls``, results with ``name`` and ``tool_call_id``. Never
                changed.
            add_generation_prompt: end with the text that precedes a reply.
            now: the time for templates that print the date, in seconds since 1970; None is the
                present. The same value through a conversation keeps its beginning the same past
                midnight.
            thinking: how much the model shall think. Where a template has no switch for it, none at
                all is asked for by an empty thought at the reply's beginning.
            tools: that the model may call, as the API describes them.

        Raises:
            TemplateError: the template fails on these messages or exceeds its limits.
        """
        self._probe()
        if self.source is None:
            return _chatml(messages, add_generation_prompt)
        if not self._supports_system:
            messages = fold_system(messages)
        if self._calls is None and any("tool_calls" in message for message in messages):
            self._calls = self._find_calls()
        try:
            switch = self._switch(thinking)
            text = self._render(messages, add_generation_prompt, now, switch.variables, tools)
            if add_generation_prompt:
                return text + switch.opening
            return text
        except TemplateError as error:
            raise TemplateError(
                f"{self._file_name}: the chat template {error} (start a new conversation or "
                f"change the message)"
            ) from error

    def close(self) -> None:
        """End the template's own rendering process; a later rendering starts another."""
        if self._owns_process:
            self._process.close()

    def _start(self) -> None:
        try:
            self._process.start()
        except TemplateError as error:
            self._fall_back(f"cannot be used: {error}")

    def _switch(self, mode: ThinkingMode) -> _Switch:
        """Find out once what has the template ask for a mode."""
        if mode not in self._switches:
            self._switches[mode] = self._find_switch(mode)
        return self._switches[mode]

    def _find_switch(self, mode: ThinkingMode) -> _Switch:
        assert self.source is not None
        if mode == _BY_DEFAULT:
            return _Switch({}, "")
        variables = mode.variables(self.source)
        try:
            text = self._render([_PROBE], True, None, variables)
        except (
            TemplateError
        ):  # it refuses a value: the rest of the conversation must not fail for that
            return self._switch(mode.next_best or _BY_DEFAULT)
        if mode.is_on:
            return _Switch(variables, "")
        open_marker = opened_by(text)
        if open_marker is not None:
            return _Switch(variables, open_marker.end)
        has_switch = text != self._render(
            [_PROBE], True, None, self._switch(ThinkingMode(True)).variables
        )
        if has_switch or closed_by(text):
            marker = None
        else:
            marker = mentioned_in(self.source)
        return _Switch(variables, marker.empty if marker is not None else "")

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        now: float | None,
        switches: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        assert self.source is not None
        source = self.source
        if tools or any(message["role"] == "tool" for message in messages):
            source = self._tools_source or source
        variables = {
            **(switches or {}),
            "messages": [
                _as_template_sees(message, self._calls, self._wants_parts) for message in messages
            ],
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) or self._tools,
            "documents": None,
            **self._specials,
        }
        return self._process.render(source, variables, time.time() if now is None else now)

    def _find_calls(self) -> _Calls:
        """Find out whether the template tells of tools, and how it takes their calls."""
        found = format_of(self._tools_source or self.source or "")
        try:
            text = self._render([_PROBE], True, None, tools=[_TOOL])
        except TemplateError:
            text = ""
        if found is None or _TOOL_NEEDLE not in text:
            return _Calls(None)
        function = {"name": _TOOL_NEEDLE, "arguments": json.dumps({"a": _VALUE_NEEDLE})}
        asked = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "qvcallqv1", "function": function}],
        }
        result = {"role": "tool", "name": _TOOL_NEEDLE, "tool_call_id": "qvcallqv1", "content": "x"}
        for has_text_arguments in (False, True):
            self._calls = _Calls(found, has_text_arguments=has_text_arguments)
            try:
                text = self._render([_PROBE, asked, result], True, None)
            except TemplateError:
                continue
            if _TOOL_NEEDLE in text and _VALUE_NEEDLE in text:
                return self._calls
        if found.write is not None:
            return _Calls(found, are_written=found.write is not None)
        return _Calls(None)

    def _probe(self) -> None:
        """Find out on first use whether the template works at all, and what it does with a system
        message."""
        if self._probed:
            return
        self._probed = True
        if self.source is None:
            return
        reason = self._why_unusable()
        for tools, wants_parts in _OTHER_FORMS:
            if reason and reason.startswith(_MAY_BE_THE_FORM):
                self._tools = tools
                self._wants_parts = wants_parts
                if not self._why_unusable():
                    reason = None
        if reason:
            self._fall_back(reason)
            return
        system = {"role": "system", "content": _SYSTEM_NEEDLE}
        try:
            text = self._render([system, _PROBE], True, None)
            self._supports_system = _SYSTEM_NEEDLE in text and _USER_NEEDLE in text
        except TemplateError:
            self._supports_system = False

    def _why_unusable(self) -> str | None:
        """Return what is wrong with the template if it cannot render one message, None if it
        can."""
        try:
            text = self._render([_PROBE], True, None)
        except TemplateError as error:
            return str(error)
        prints = (
            _USER_NEEDLE in text and f"'{_USER_NEEDLE}'" not in text
        )  # and not as Python writes a list
        if prints:
            return None
        return _PRINTS_NOTHING

    def _fall_back(self, reason: str) -> None:
        self.source = None
        self._probed = True
        if reason:
            what = f"the chat template {reason}"
        else:
            what = "has no chat template"
        self._notice = f"{self._file_name}: {what}; using ChatML"
        self.close()


def _as_template_sees(
    message: Mapping[str, Any], how: _Calls | None, wants_parts: bool
) -> dict[str, Any]:
    """Return a message with thought and answer apart where it consists of channels, and its calls
    as is usual."""
    role = message["role"]
    content = message["content"]
    seen: dict[str, Any] = {"role": role, "content": content}
    calls = message.get("tool_calls")
    if role == "assistant":
        parts = parts_of_channels(content)
    else:
        parts = None
    if parts is not None:
        thought, answer = parts
        seen["content"] = answer
        if not (calls and answer):  # with a call, templates take one of the two
            seen |= {"thinking": thought, "reasoning": thought}
    if (
        calls
        and how is not None
        and how.are_written
        and how.format is not None
        and how.format.write is not None
    ):
        written = [
            (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
        ]
        seen["content"] += how.format.write(written)
    elif calls:
        has_text = how is not None and how.has_text_arguments
        seen["tool_calls"] = [_call_seen(call, has_text) for call in calls]
    if role == "tool":
        seen |= {"name": message.get("name", ""), "tool_call_id": message.get("tool_call_id", "")}
    if wants_parts:
        seen["content"] = [{"type": "text", "text": seen["content"]}]
    return seen


def _call_seen(call: Mapping[str, Any], has_text: bool) -> dict[str, Any]:
    function = call["function"]
    if has_text:
        arguments = function["arguments"]
    else:
        arguments = json.loads(function["arguments"])
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put a leading system message in front of the first user message, a newline between, as
    llama.cpp does."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    for at, message in enumerate(rest):
        if message["role"] == "user":
            content = "\n".join(part for part in (system["content"], message["content"]) if part)
            return [*rest[:at], {"role": "user", "content": content}, *rest[at + 1 :]]
    return [{"role": "user", "content": system["content"]}, *rest]


def _refusal(source: object) -> str | None:
    """Return why a value cannot be a template: None if it can, "" if the file has no template."""
    if source is None:
        return ""
    if not isinstance(source, str):
        return f"is a {shown(type(source).__name__)}, not a string"
    if not source.strip():
        return "is empty"
    if len(source) > MAX_SOURCE_CHARS:
        return f"has {len(source)} characters, over {MAX_SOURCE_CHARS}"
    try:
        source.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None


def _chatml(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    end, start = CHATML_TAGS
    turns = [f"{start}{message['role']}\n{message['content']}{end}\n" for message in messages]
    return "".join(turns) + (f"{start}assistant\n" if add_generation_prompt else "")

"""Chat templates: from messages to the text of a prompt.

The template comes from the model's file and is untrusted, so another process renders it
(``engine.prompt.template_process``). ChatML replaces templates that are missing or unusable.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import TemplateError, printable
from engine.prompt.template_process import TemplateProcess
from engine.prompt.thinking import (
    ThinkingMode,
    closed_by,
    knows_levels,
    mentioned_in,
    opened_by,
    split_channels,
)
from engine.prompt.tools.formats import CallFormat, format_of

KEY = "tokenizer.chat_template"
TOOLS_KEY = "tokenizer.chat_template.tool_use"
"""Key of a separate template for conversations with tools."""

MAX_SOURCE_CHARS = 1 << 18
"""Limit on the characters of a template; the longest in use have about 20,000."""

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
_DATE = re.compile(r"strftime_now|date_string")
"""Function and variable with which templates print a date."""
_BY_DEFAULT = ThinkingMode()
_PRINTS_NOTHING = "does not print the messages"
_FAULTS_OF_FORM = (_PRINTS_NOTHING, "fails: ")
"""Faults that another form of the variables may fix."""
_OTHER_FORMS: tuple[tuple[list[str] | None, bool], ...] = ((None, True), ([], False), ([], True))
"""Alternative forms to try: value of ``tools``, and whether content is a list of parts."""


@dataclass(frozen=True)
class _Switch:
    """Way in which a template requests a thinking mode.

    Attributes:
        variables: variables of the template.
        opening: text after the generation prompt.
    """

    variables: Mapping[str, Any]
    opening: str


@dataclass(frozen=True)
class _CallHandling:
    """Way in which a template handles tool calls.

    Attributes:
        format: format of the calls in replies; None if the template has no tools.
        has_text_arguments: whether arguments are JSON text rather than an object.
        are_written: whether calls must be part of the message's text, since the template prints
            none.
    """

    format: CallFormat | None
    has_text_arguments: bool = False
    are_written: bool = False


class ChatTemplate:
    """Chat template of a model.

    ChatML replaces a template that is missing or fails on a simple conversation; ``notice`` tells
    the user. A template that fails later, on certain messages, raises an error, since another
    format within a conversation would confuse the model.

    Args:
        source: Jinja source; None for ChatML.
        bos_text: text of the begin-of-text token.
        eos_text: text of the end-of-text token.
        file_name: name of the model's file, for messages.
        process: renderer to use; None starts one at once and closes it with the template.
        tools_source: Jinja source for conversations with tools; None for ``source``.

    Attributes:
        source: Jinja source in use; None for ChatML.
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
        self._tools_source = tools_source if _refusal(tools_source) is None else None
        self._calls: _CallHandling | None = None
        self._specials = {"bos_token": bos_text, "eos_token": eos_text}
        self._file_name = file_name
        self._process = process or TemplateProcess()
        self._owns_process = process is None
        self._notice: str | None = None
        self._supports_system = True
        self._wants_parts = False
        """Whether the template needs content as a list of parts instead of text."""
        self._tools: list[str] | None = None
        self._switches: dict[ThinkingMode, _Switch] = {}
        self._accepted_roles: dict[tuple[str, ...], bool] = {}
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
        """Return the template in a GGUF file's metadata, or ChatML if it has a fault."""
        return cls(
            metadata.get(KEY), bos_text, eos_text, file_name, tools_source=metadata.get(TOOLS_KEY)
        )

    @property
    def notice(self) -> str | None:
        """Reason why ChatML replaces the file's template, one line; None if it does not."""
        self._probe()
        return self._notice

    @property
    def supports_system(self) -> bool:
        """Whether the template has a system role. If not, the system message is added to the first
        user message."""
        self._probe()
        return self._supports_system

    @property
    def names_date(self) -> bool:
        """Whether the template prints a date."""
        return self.source is not None and _DATE.search(self.source) is not None

    @property
    def knows_levels(self) -> bool:
        """Whether the template has levels of thinking."""
        return self.source is not None and knows_levels(self.source)

    @property
    def call_format(self) -> CallFormat | None:
        """Format of the model's tool calls; None if the template has no tools or an unknown
        format."""
        self._probe()
        if self.source is None:
            return None
        if self._calls is None:
            self._calls = self._find_calls()
        return self._calls.format

    def takes(self, roles: tuple[str, ...]) -> bool:
        """Whether the template prints messages with these roles in this order. Many templates
        refuse or omit some roles."""
        self._probe()
        if self.source is None:
            return True
        if roles not in self._accepted_roles:
            messages = [
                {"role": role, "content": f"qv{role}{index}qv"} for index, role in enumerate(roles)
            ]
            try:
                text = self._render(messages, True, None)
            except TemplateError:
                text = ""
            self._accepted_roles[roles] = all(message["content"] in text for message in messages)
        return self._accepted_roles[roles]

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
            messages: messages with ``role`` (system, user, assistant, tool) and ``content``;
                replies with calls have ``tool_calls``, results have ``name`` and ``tool_call_id``.
            add_generation_prompt: end with the text that precedes a reply.
            now: time for templates that print the date, in seconds since 1970; None for the
                present. The same value throughout a conversation keeps its beginning unchanged
                after midnight.
            thinking: amount of thinking. If a template has no switch for it, an empty thought at
                the beginning of the reply turns thinking off.
            tools: tools that the model may call, as the API describes them.

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
        """End the rendering process; a later rendering starts another one."""
        if self._owns_process:
            self._process.close()

    def _start(self) -> None:
        try:
            self._process.start()
        except TemplateError as error:
            self._fall_back(f"cannot be used: {error}")

    def _switch(self, mode: ThinkingMode) -> _Switch:
        """Return the way in which the template requests a mode, found by trying."""
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
        except TemplateError:  # the template refuses the mode
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
            return _Switch(variables, "")
        marker = mentioned_in(self.source)
        return _Switch(variables, "" if marker is None else marker.empty)

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
                _template_message(message, self._calls, self._wants_parts) for message in messages
            ],
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) or self._tools,
            "documents": None,
            **self._specials,
        }
        return self._process.render(source, variables, time.time() if now is None else now)

    def _find_calls(self) -> _CallHandling:
        """Find out whether the template has tools, and how it handles their calls."""
        call_format = format_of(self._tools_source or self.source or "")
        try:
            text = self._render([_PROBE], True, None, tools=[_TOOL])
        except TemplateError:
            text = ""
        if call_format is None or _TOOL_NEEDLE not in text:
            return _CallHandling(None)
        function = {"name": _TOOL_NEEDLE, "arguments": json.dumps({"a": _VALUE_NEEDLE})}
        call_message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "qvcallqv1", "function": function}],
        }
        result = {"role": "tool", "name": _TOOL_NEEDLE, "tool_call_id": "qvcallqv1", "content": "x"}
        for has_text_arguments in (False, True):
            self._calls = _CallHandling(call_format, has_text_arguments=has_text_arguments)
            try:
                text = self._render([_PROBE, call_message, result], True, None)
            except TemplateError:
                continue
            if _TOOL_NEEDLE in text and _VALUE_NEEDLE in text:
                return self._calls
        if call_format.write is not None:
            return _CallHandling(call_format, are_written=call_format.write is not None)
        return _CallHandling(None)

    def _probe(self) -> None:
        """Find out on first use whether the template works, and whether it has a system role."""
        if self._probed:
            return
        self._probed = True
        if self.source is None:
            return
        reason = self._fault()
        for tools, wants_parts in _OTHER_FORMS:
            if reason and reason.startswith(_FAULTS_OF_FORM):
                self._tools = tools
                self._wants_parts = wants_parts
                if not self._fault():
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

    def _fault(self) -> str | None:
        """Return the fault of a template that cannot render one message; None if it can."""
        try:
            text = self._render([_PROBE], True, None)
        except TemplateError as error:
            return str(error)
        is_printed_as_list = f"'{_USER_NEEDLE}'" in text
        if _USER_NEEDLE in text and not is_printed_as_list:
            return None
        return _PRINTS_NOTHING

    def _fall_back(self, reason: str) -> None:
        self.source = None
        self._probed = True
        if reason:
            problem = f"the chat template {reason}"
        else:
            problem = (
                "has no chat template, so it is probably a base model: it continues text and does "
                "not chat (its Instruct version does)"
            )
        self._notice = f"{self._file_name}: {problem}; using ChatML"
        self.close()


def _template_message(
    message: Mapping[str, Any], handling: _CallHandling | None, wants_parts: bool
) -> dict[str, Any]:
    """Return a message in the form that templates expect: thought and answer of channels
    separately, and calls as objects."""
    role = message["role"]
    content = message["content"]
    fields: dict[str, Any] = {"role": role, "content": content}
    calls = message.get("tool_calls")
    channels = split_channels(content) if role == "assistant" else None
    if channels is not None:
        thought, answer = channels
        fields["content"] = answer
        if not (calls and answer):  # templates accept only one of them next to a call
            fields |= {"thinking": thought, "reasoning": thought}
    if (
        calls
        and handling is not None
        and handling.are_written
        and handling.format is not None
        and handling.format.write is not None
    ):
        calls_to_write = [
            (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
        ]
        fields["content"] += handling.format.write(calls_to_write)
    elif calls:
        has_text = handling is not None and handling.has_text_arguments
        fields["tool_calls"] = [_template_call(call, has_text) for call in calls]
    if role == "tool":
        fields |= {"name": message.get("name", ""), "tool_call_id": message.get("tool_call_id", "")}
    if wants_parts:
        fields["content"] = [{"type": "text", "text": fields["content"]}]
    return fields


def _template_call(call: Mapping[str, Any], has_text: bool) -> dict[str, Any]:
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
    """Prepend a leading system message to the first user message, with a newline between, as in
    llama.cpp."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *following = messages
    for index, message in enumerate(following):
        if message["role"] == "user":
            content = "\n".join(text for text in (system["content"], message["content"]) if text)
            return [
                *following[:index],
                {"role": "user", "content": content},
                *following[index + 1 :],
            ]
    return [{"role": "user", "content": system["content"]}, *following]


def _refusal(source: object) -> str | None:
    """Return the reason why a value cannot be a template: None if it can, empty if the file has no
    template."""
    if source is None:
        return ""
    if not isinstance(source, str):
        return f"is a {printable(type(source).__name__)}, not a string"
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
    if add_generation_prompt:
        turns.append(f"{start}assistant\n")
    return "".join(turns)

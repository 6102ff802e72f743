"""Requests of the dialect of ``/v1/responses``. The server stores no responses."""

from __future__ import annotations

from dataclasses import replace

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.server.api_error import unsupported
from app.server.completion_request import (
    NEUTRAL,
    SILENTLY_IGNORED,
    CompletionRequest,
    read_effort,
    read_limit,
    read_model_name,
    refuse_unsupported,
)
from app.server.fields import Fields, replace_surrogates
from app.server.form_fields import read_form
from app.server.message_fields import (
    MAX_MESSAGES,
    joined_name,
    read_call,
    read_id,
    read_message,
    read_text,
    read_tools,
)
from app.server.message_order import arrange_messages
from app.server.sampling_fields import read_sampling
from engine.prompt.tools.calls import MAX_NAME_CHARS, CallResult

_STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to something stored."""
_NEUTRAL = {"background": False}
_IGNORED = ("include", "truncation", "max_tool_calls", "client_metadata")
"""Fields without influence on the reply."""
_LEFT_OUT = ("reasoning", "item_reference", "compaction")
"""Types of output items that clients send back. The session has the tokens of thoughts, and nothing
is stored that a reference could mean."""
_CALL = "function_call"
_RESULT = "function_call_output"


def read_response_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/v1/responses``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    fields = fields.unwrapped()
    model = read_model_name(fields, served_model)
    for name in (*SILENTLY_IGNORED, *_IGNORED):
        fields.mark_read(name)
    for name in _STORED:
        if fields.has(name):
            raise unsupported(
                name,
                "is not supported: this server stores nothing (send the whole conversation as "
                "input)",
            )
    refuse_unsupported(fields, NEUTRAL | _NEUTRAL)

    reasoning = fields.nested("reasoning") or fields.array_item({}, "reasoning")
    thinking = read_effort(reasoning, "effort")
    for name in ("summary", "generate_summary"):
        reasoning.mark_read(name)  # Thoughts are sent in full.
    reasoning.ignore_rest()

    form = read_form(fields)
    text = fields.nested("text") or fields.array_item({}, "text")
    for name in ("format", "verbosity"):
        text.mark_read(name)
    text.ignore_rest()

    stream = fields.nested("stream_options") or fields.array_item({}, "stream_options")
    stream.flag("include_obfuscation")
    stream.ignore_rest()

    messages, reply_prefix = arrange_messages(
        _read_input(fields), "input", "an item of type function_call_output"
    )
    request = CompletionRequest(
        model=model,
        messages=messages,
        reply_prefix=reply_prefix,
        tools=read_tools(fields),
        sampling=read_sampling(fields),
        max_tokens=read_limit(fields, "max_output_tokens"),
        thinking=thinking,
        form=form,
        is_streamed=fields.flag("stream"),
    )
    fields.ignore_rest()
    return request


def _read_input(fields: Fields) -> list[PromptMessage]:
    """Return instructions and input as messages."""
    value = fields.value("input")
    instructions = fields.value("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise fields.wrong_value("instructions", "a string")
    if value is None or value in ("", []):
        raise fields.missing_value(
            "input", "a text, or a list of messages that ends with the user's"
        )

    messages: list[PromptMessage] = []
    if instructions:
        messages.append(PromptMessage(SYSTEM, replace_surrogates(instructions)))
    if isinstance(value, str):
        messages.append(PromptMessage(USER, replace_surrogates(value)))
        return messages

    if not isinstance(value, list) or len(value) > MAX_MESSAGES:
        raise fields.wrong_value("input", f"a text, or a list of at most {MAX_MESSAGES} messages")
    for index, item in enumerate(value):
        message = _read_item(fields, fields.array_item(item, f"input[{index}]"))
        if message is not None:
            messages.append(message)
    return messages


def _read_item(fields: Fields, item: Fields) -> PromptMessage | None:
    """Read an item of the input; None for an item that is left out."""
    item_type = item.text("type", "message")
    for name in ("id", "status", "phase"):
        item.mark_read(name)  # fields of output items that clients send back

    if item_type == "message":
        return read_message(item)
    if item_type == _CALL:
        namespace = item.text("namespace") or ""
        call = read_call(item, read_id(item, "call_id"))
        call = replace(call, name=joined_name(namespace, call.name)[:MAX_NAME_CHARS])
        return PromptMessage(ASSISTANT, "", (call,))
    if item_type == _RESULT:
        text = read_text(item, "output", is_result=True)
        result = CallResult("", "", read_id(item, "call_id"))
        item.ignore_rest()
        return PromptMessage(TOOL, text, results=(result,))
    if item_type not in _LEFT_OUT:
        fields.ignore(f"input of type {item_type}")
    return None

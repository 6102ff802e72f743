"""Requests for ``/v1/responses``, checked field by field: the same orders in other words.

Nothing is stored here.
"""

from __future__ import annotations

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.server.api_error import unsupported
from app.server.completion_request import (
    IGNORED,
    NEUTRAL,
    CompletionRequest,
    read_effort,
    read_limit,
    refuse_unsupported,
    take_model,
)
from app.server.fields import Fields, whole_text
from app.server.form_fields import read_form
from app.server.message_fields import (
    MOST_MESSAGES,
    read_call,
    read_id,
    read_message,
    read_text,
    read_tools,
)
from app.server.message_order import arranged
from app.server.sampling_fields import read_sampling
from engine.prompt.tools.calls import CallResult

_STORED = ("previous_response_id", "conversation", "prompt")
_NEUTRAL = {"background": False}
_IGNORED = ("include", "truncation", "max_tool_calls", "client_metadata")
"""What the answer does not depend on, or a server that stores nothing has nothing for."""
_LEFT_OUT = ("reasoning", "item_reference", "compaction")
"""Items of ours that clients send back: the tokens of a thought are kept, and nothing is stored
that could be meant."""
_CALL = "function_call"
_RESULT = "function_call_output"


def response_order(fields: Fields, only: str) -> CompletionRequest:
    """Read a request for ``/v1/responses``; ``only``: as ``take_model``.

    Raises ApiError: it is wrong somewhere.
    """
    fields = fields.opened()
    model = take_model(fields, only)
    for name in (*IGNORED, *_IGNORED):
        fields.any(name)
    for name in _STORED:
        if fields.has(name):
            raise unsupported(
                name,
                "is not supported: nothing is stored here (send the whole conversation as input)",
            )
    refuse_unsupported(fields, NEUTRAL | _NEUTRAL)
    reasoning, text, stream = (
        fields.table(name) or fields.item({}, name)
        for name in ("reasoning", "text", "stream_options")
    )
    thinking = read_effort(reasoning, "effort")
    for name in ("summary", "generate_summary"):
        reasoning.any(name)  # thoughts are told as they are
    form = read_form(fields)
    for name in ("format", "verbosity"):
        text.any(name)
    stream.flag("include_obfuscation")
    for part in (reasoning, text, stream):
        part.ignore_rest()
    messages, begun = arranged(_said(fields), "input", "an item of type function_call_output")
    tools = read_tools(fields)
    order = CompletionRequest(
        model=model,
        messages=messages,
        begun=begun,
        sampling=read_sampling(fields),
        max_tokens=read_limit(fields, "max_output_tokens"),
        thinking=thinking,
        form=form,
        tools=tools,
        is_streamed=fields.flag("stream"),
    )
    fields.ignore_rest()
    return order


def _said(fields: Fields) -> list[PromptMessage]:
    """Return instructions and input as the messages of a chat."""
    given = fields.any("input")
    instructions = fields.any("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise fields.wrong("instructions", "a string")
    wanted = "a text, or a list of messages, the last one of the user"
    if given is None or given in ("", []):
        raise fields.missing("input", wanted)
    if instructions:
        said = [PromptMessage(SYSTEM, whole_text(instructions))]
    else:
        said = []
    if isinstance(given, str):
        return [*said, PromptMessage(USER, whole_text(given))]
    if not isinstance(given, list) or len(given) > MOST_MESSAGES:
        raise fields.wrong("input", f"a text, or a list of at most {MOST_MESSAGES} messages")
    read = (_item(fields, fields.item(item, f"input[{at}]")) for at, item in enumerate(given))
    return [*said, *(one for one in read if one is not None)]


def _item(fields: Fields, item: Fields) -> PromptMessage | None:
    """Read an item of the input; None for one that has nothing to say here."""
    kind = item.text("type", "message")
    for name in ("id", "status", "phase"):
        item.any(name)  # of an item of ours that a client sends back
    if kind == "message":
        return read_message(item)
    if kind == _CALL:
        item.any("namespace")
        return PromptMessage(ASSISTANT, "", (read_call(item, read_id(item, "call_id")),))
    if kind == _RESULT:
        text = read_text(item, "output", is_result=True)
        result = PromptMessage(TOOL, text, results=(CallResult("", "", read_id(item, "call_id")),))
        item.ignore_rest()
        return result
    if kind not in _LEFT_OUT:
        fields.note_ignored(f"input of type {kind}")
    return None

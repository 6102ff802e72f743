"""Requests for ``/v1/responses``, checked field by field and made the same order as those for a chat.

Nothing is stored: each request brings the whole conversation.
"""

from __future__ import annotations

from typing import Any

from app.server.answer_form import read_format
from app.server.api_error import ApiError, unsupported
from app.server.fields import Fields, kind_of
from app.server.messages import SYSTEM, Said, read_messages
from app.server.order import EFFORTS, MOST_TOKENS, Order, check_model, read_sampling, refuse_unsupported

_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls")  # fmt: skip
_STORED = ("previous_response_id", "conversation")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([],),
    "max_tool_calls": (),
    "prompt": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_TEXT_PARTS = "input_text", "output_text", "text"


def response_order(fields: Fields, model_id: str) -> Order:
    """Read a request for ``/v1/responses``. Raises ApiError: it is wrong somewhere."""
    check_model(fields, model_id)
    for name in _IGNORED:
        fields.any(name)
    for name in _STORED:
        if fields.has(name):
            raise unsupported(name, "is not supported: nothing is stored here (send the whole conversation as input)")
    refuse_unsupported(fields, _NEUTRAL)
    reasoning, text, stream = fields.table("reasoning"), fields.table("text"), fields.table("stream_options")
    effort, form = None, None
    if reasoning is not None:
        effort = reasoning.word("effort", *EFFORTS)
        for name in ("summary", "generate_summary"):
            reasoning.any(name)  # thoughts are told as they are
        reasoning.refuse_rest()
    if text is not None:
        form = read_format(text.table("format"), is_flat=True)
        refuse_unsupported(text, {"verbosity": ("medium",)})
        text.refuse_rest()
    if stream is not None:
        stream.flag("include_obfuscation")
        stream.refuse_rest()
    order = Order(
        messages=_conversation(fields),
        sampling=tuple(read_sampling(fields).items()),
        max_tokens=fields.whole("max_output_tokens", 1, MOST_TOKENS),
        thinking=EFFORTS[effort] if effort is not None else None,
        form=form,
        is_streamed=fields.flag("stream"),
    )
    fields.refuse_rest()
    return order


def _conversation(fields: Fields) -> tuple[Said, ...]:
    """Return instructions and input as the messages of a chat."""
    given, instructions = fields.any("input"), fields.text("instructions")
    if given is None or given in ("", []):
        raise fields.missing("input", "a text, or a list of messages, the last one of the user")
    if isinstance(given, str):
        said: list[Any] = [{"role": "user", "content": given}]
    elif isinstance(given, list):
        said = [_message(item, f"input[{at}]") for at, item in enumerate(given)]
        said = [item for item in said if item is not None]
    else:
        raise fields.wrong("input", "a text, or a list of messages")
    try:
        messages = read_messages(Fields({"messages": said}))
    except ApiError as error:
        place = (error.param or "").replace("messages", "input", 1)
        raise ApiError(error.message.replace("messages", "input", 1), param=place, code=error.code) from None
    if not instructions:
        return messages
    if messages[0].role == SYSTEM:
        return (Said(SYSTEM, f"{instructions}\n\n{messages[0].text}"), *messages[1:])
    return (Said(SYSTEM, instructions), *messages)


def _message(item: Any, place: str) -> Any:
    """Return an item of the input as a message; None for a thought, whose tokens are kept here."""
    fields = Fields.of(item, place)
    kind = fields.text("type", "message")
    if kind == "reasoning":
        return None
    if kind != "message":
        raise unsupported(fields.place("type"), f"is {kind_of(kind)}: only messages are supported")
    for name in ("id", "status", "phase"):
        fields.any(name)  # of an answer of ours that a client sends back
    role, content = fields.text("role"), fields.any("content")
    fields.refuse_rest()
    if isinstance(content, list):
        content = [_part(one, f"{place}.content[{at}]") for at, one in enumerate(content)]
    return {"role": role, "content": content}


def _part(item: Any, place: str) -> Any:
    part = Fields.of(item, place)
    if part.any("type") not in _TEXT_PARTS:
        raise unsupported(f"{place}.type", f"is {kind_of(part.any('type'))}: only text is supported")
    return {"type": "text", "text": part.any("text")}

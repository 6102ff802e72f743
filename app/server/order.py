"""Requests for text, checked field by field: what is to be answered or continued, and how.

What the API knows and this server does not do is refused by name, never left out silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.chat.answer_form import AnswerForm
from app.server.answer_form import read_form, read_format
from app.server.api_error import ApiError, unsupported
from app.server.fields import Fields, kind_of
from app.server.messages import SYSTEM, Said, Tools, read_messages, read_tools
from app.server.sampling_fields import read_sampling
from app.text.record import record

MOST_STOPS = 16
MOST_STOP_CHARS = 1000
MOST_TOP_LOGPROBS = 20
MOST_TOKENS = 2**31 - 1
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields that concern a provider's accounts and change no answer."""
_STORED = ("previous_response_id", "conversation")
_EFFORTS = {
    "none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": ("medium",),
}
"""Parameters that are not supported, with the values at which they have no effect and are accepted."""
_NEUTRAL_IN_RESPONSES: dict[str, tuple[Any, ...]] = {
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


@record
class Order:
    """A request for text."""

    messages: tuple[Said, ...] = ()
    """The conversation to answer; empty where a text is continued."""
    begun: str = ""
    """The beginning of the reply, which goes on from it."""
    prompt: str | tuple[int, ...] = ""
    """The text to continue, or its tokens."""
    sampling: tuple[tuple[str, Any], ...] = ()
    """Fields of ``engine.Sampling`` that the request sets."""
    max_tokens: int | None = None
    """Limit on the reply; None for what the settings say."""
    stops: tuple[str, ...] = ()
    n_logprobs: int | None = None
    """How many of the likeliest tokens are told with each one; None for no log-probabilities."""
    thinking: str | None = None
    """As ``ThinkingMode.parse`` reads it; None for what the settings say."""
    form: AnswerForm | None = None
    """Of the reply; None for any."""
    tools: Tools | None = None
    """Tools that the model may call; None for none."""
    is_streamed: bool = False
    tells_usage: bool = False
    """Whether a stream ends with the number of tokens."""

    @property
    def is_chat(self) -> bool:
        """Whether a conversation is answered, by the model's chat template."""
        return bool(self.messages)


def chat_order(fields: Fields, model_id: str) -> Order:
    """Read a request for ``/v1/chat/completions``. Raises ApiError: it is wrong somewhere."""
    check_model(fields, model_id)
    is_continued = fields.flag("continue_final_message")
    if fields.flag("add_generation_prompt") and is_continued:
        raise ApiError("add_generation_prompt excludes continue_final_message", param="add_generation_prompt")
    messages = read_messages(fields, is_continued)
    tools = read_tools(fields)
    if tools is not None and is_continued:
        raise unsupported("continue_final_message", "cannot stand beside tools (use one of the two)")
    n_logprobs = None
    n_top = fields.whole("top_logprobs", 0, MOST_TOP_LOGPROBS)
    if fields.flag("logprobs"):
        n_logprobs = n_top or 0
    elif n_top:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    completion_limit = fields.whole("max_completion_tokens", 1, MOST_TOKENS)
    order = _order(
        fields,
        tools=tools,
        messages=messages[:-1] if is_continued else messages,
        begun=messages[-1].text if is_continued else "",
        n_logprobs=n_logprobs,
        max_tokens=fields.whole("max_tokens", 1, MOST_TOKENS) if completion_limit is None else completion_limit,
        thinking=_thinking(fields),
    )
    fields.any("max_tokens")
    fields.refuse_rest()
    return order


def completion_order(fields: Fields, model_id: str) -> Order:
    """Read a request for ``/v1/completions``. Raises ApiError: it is wrong somewhere."""
    check_model(fields, model_id)
    prompt, n_logprobs = _prompt(fields), fields.whole("logprobs", 0, MOST_TOP_LOGPROBS)
    order = _order(fields, prompt=prompt, n_logprobs=n_logprobs, max_tokens=fields.whole("max_tokens", 1, MOST_TOKENS))
    fields.refuse_rest()
    return order


def _order(fields: Fields, **own: Any) -> Order:
    for name in _IGNORED:
        fields.any(name)
    _refuse_unsupported(fields, _NEUTRAL)
    options = fields.table("stream_options") or Fields({})
    options.flag("include_obfuscation")  # there is no network between to hide lengths from
    tells_usage = options.flag("include_usage")
    options.refuse_rest()
    return Order(
        **own,
        sampling=read_sampling(fields),
        stops=_stops(fields),
        form=read_form(fields),
        is_streamed=fields.flag("stream"),
        tells_usage=tells_usage,
    )


def check_model(fields: Fields, model_id: str) -> None:
    """Refuse another model than the one that is served."""
    wanted = fields.text("model")
    if wanted not in (None, model_id):
        shown = str(wanted)[:60]
        raise ApiError(f'model "{shown}" is not served here (served: {model_id})', 404, "model", "model_not_found")


def _refuse_unsupported(fields: Fields, neutral_values: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse what asks for something that is not done here: all but the values that ask for nothing."""
    for name, neutral in neutral_values.items():
        is_read = name in fields.taken
        if not is_read and fields.has(name) and not any(_same(fields.any(name), value) for value in neutral):
            allowed = f" (allowed: {', '.join(map(str, neutral))})" if neutral else ""
            raise unsupported(fields.place(name), f"is not supported{allowed}")


def _same(value: Any, neutral: Any) -> bool:
    is_number = isinstance(value, (int, float)) and isinstance(neutral, (int, float))
    return (type(value) is type(neutral) or (is_number and not isinstance(value, bool))) and bool(value == neutral)


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.any("stop")
    if given is None:
        return ()
    texts: Sequence[Any] = given if isinstance(given, list) else [given]
    if len(texts) > MOST_STOPS or not all(isinstance(one, str) and 0 < len(one) <= MOST_STOP_CHARS for one in texts):
        raise fields.wrong("stop", f"a string, or at most {MOST_STOPS}, of 1 to {MOST_STOP_CHARS} characters")
    return tuple(texts)


def _thinking(fields: Fields) -> str | None:
    effort = fields.word("reasoning_effort", *_EFFORTS)
    variables = fields.table("chat_template_kwargs") or Fields({})
    is_on = variables.flag("enable_thinking")
    variables.refuse_rest()
    if variables.has("enable_thinking"):
        return "on" if is_on else "off"
    return _EFFORTS.get(effort or "")


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    given = fields.any("prompt")
    wanted = "a string, or a list of token ids"
    if given is None:
        raise fields.missing("prompt", wanted)
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], (str, list)):
        given = given[0]
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(type(one) is int and 0 <= one <= MOST_TOKENS for one in given):
        return tuple(given)
    if isinstance(given, list) and len(given) > 1 and all(isinstance(one, (str, list)) for one in given):
        raise unsupported("prompt", "has several texts: one at a time is supported")
    raise fields.wrong("prompt", wanted)


def response_order(fields: Fields, model_id: str) -> Order:
    """Read a request for ``/v1/responses``, where nothing is stored. Raises ApiError: it is wrong somewhere."""
    check_model(fields, model_id)
    for name in (*_IGNORED, "prompt_cache_retention"):
        fields.any(name)
    for name in _STORED:
        if fields.has(name):
            raise unsupported(name, "is not supported: nothing is stored here (send the whole conversation as input)")
    _refuse_unsupported(fields, _NEUTRAL_IN_RESPONSES)
    reasoning, text, stream = (fields.table(name) or Fields({}) for name in ("reasoning", "text", "stream_options"))
    effort = reasoning.word("effort", *_EFFORTS)
    for name in ("summary", "generate_summary"):
        reasoning.any(name)  # thoughts are told as they are
    reasoning.refuse_rest()
    form = read_format(text.table("format"), is_flat=True)
    _refuse_unsupported(text, {"verbosity": ("medium",)})
    text.refuse_rest()
    stream.flag("include_obfuscation")
    stream.refuse_rest()
    order = Order(
        messages=_conversation(fields),
        sampling=read_sampling(fields),
        max_tokens=fields.whole("max_output_tokens", 1, MOST_TOKENS),
        thinking=_EFFORTS.get(effort or ""),
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
        read = (_message(item, f"input[{at}]") for at, item in enumerate(given))
        said = [item for item in read if item is not None]
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

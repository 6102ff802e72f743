"""Requests for text, checked field by field: what is to be answered or continued, and how.

What the API knows and this server does not do is refused by name, never left out silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.chat.answer_form import AnswerForm
from app.server.answer_form import read_form
from app.server.api_error import ApiError, unsupported
from app.server.fields import Fields
from app.server.messages import Said, read_messages
from app.server.tools import Tools, read_tools, without_forms
from app.text.record import record

MOST_STOPS = 16
MOST_STOP_CHARS = 1000
MOST_TOP_LOGPROBS = 20
RANDOM_SEED = -1
"""As in the settings."""
MOST_TOKENS = 2**31 - 1
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields that concern a provider's accounts and change no answer."""
EFFORTS = {
    "none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
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
    without_forms(tools, order.form)
    fields.any("max_tokens")
    fields.refuse_rest()
    return order


def completion_order(fields: Fields, model_id: str) -> Order:
    """Read a request for ``/v1/completions``. Raises ApiError: it is wrong somewhere."""
    check_model(fields, model_id)
    order = _order(
        fields,
        prompt=_prompt(fields),
        n_logprobs=fields.whole("logprobs", 0, MOST_TOP_LOGPROBS),
        max_tokens=fields.whole("max_tokens", 1, MOST_TOKENS),
    )
    fields.refuse_rest()
    return order


def _order(fields: Fields, **own: Any) -> Order:
    for name in _IGNORED:
        fields.any(name)
    refuse_unsupported(fields, _NEUTRAL)
    options = fields.table("stream_options")
    tells_usage = options.flag("include_usage") if options is not None else False
    if options is not None:
        options.flag("include_obfuscation")  # there is no network between to hide lengths from
        options.refuse_rest()
    return Order(
        **own,
        sampling=tuple(read_sampling(fields).items()),
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


def refuse_unsupported(fields: Fields, neutral_values: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse what asks for something that is not done here: all but the values that ask for nothing."""
    for name, neutral in neutral_values.items():
        is_read = name in fields.taken
        if not is_read and fields.has(name) and not any(_same(fields.any(name), value) for value in neutral):
            allowed = f" (allowed: {', '.join(map(str, neutral))})" if neutral else ""
            raise unsupported(fields.place(name), f"is not supported{allowed}")


def _same(value: Any, neutral: Any) -> bool:
    is_number = isinstance(value, (int, float)) and isinstance(neutral, (int, float))
    return (type(value) is type(neutral) or (is_number and not isinstance(value, bool))) and bool(value == neutral)


def read_sampling(fields: Fields) -> dict[str, Any]:
    """Return the fields of ``engine.Sampling`` that a request sets."""
    chosen = {
        "temperature": fields.number("temperature", 0, 100),
        "top_p": fields.number("top_p", 0, 1),
        "min_p": fields.number("min_p", 0, 1),
        "top_k": fields.whole("top_k", 0, MOST_TOKENS),
        "repeat_penalty": fields.number("repeat_penalty", 0.01, 100),
        "repeat_window": fields.whole("repeat_last_n", 0, MOST_TOKENS),
        "seed": fields.whole("seed", -(2**63), 2**63 - 1),
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return given | {"seed": None} if given.get("seed") == RANDOM_SEED else given


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.any("stop")
    if given is None:
        return ()
    texts: Sequence[Any] = given if isinstance(given, list) else [given]
    is_right = len(texts) <= MOST_STOPS and all(
        isinstance(text, str) and 0 < len(text) <= MOST_STOP_CHARS for text in texts
    )
    if not is_right:
        raise fields.wrong("stop", f"a string, or at most {MOST_STOPS}, of 1 to {MOST_STOP_CHARS} characters")
    return tuple(texts)


def _thinking(fields: Fields) -> str | None:
    effort = fields.word("reasoning_effort", *EFFORTS)
    variables = fields.table("chat_template_kwargs")
    if variables is not None:
        is_on = variables.flag("enable_thinking") if variables.has("enable_thinking") else None
        variables.refuse_rest()
        if is_on is not None:
            return "on" if is_on else "off"
    return EFFORTS[effort] if effort is not None else None


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

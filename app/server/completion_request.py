"""Requests for text, checked field by field: what is to be answered or continued, and how.

What would change the answer's meaning and is not done here is refused by name; other fields are
ignored, and noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from app.conversations.conversation import ASSISTANT, PromptMessage
from app.forms.answer_form import AnswerForm
from app.server.api_error import ApiError, unsupported
from app.server.fields import Fields, as_whole, is_short_text, whole_text
from app.server.form_fields import read_form
from app.server.message_fields import Tools, read_messages, read_tools
from app.server.message_order import arranged
from app.server.sampling_fields import read_sampling
from app.text.record import record

MOST_STOPS = 64
MOST_STOP_CHARS = 1000
MOST_TOP_LOGPROBS = 20
MOST_TOKENS = 2**31 - 1
LATEST = ":latest"
"""Ollama's end of a name without another one after the colon: with and without it a model is the
same."""
MOST_ANSWERS = 8
"""Limit on the answers to one request."""
IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls", "verbosity", "prediction", "audio",
)  # fmt: skip
"""Fields that concern a provider's accounts or how it computes, and are not worth a line of the
log."""
EFFORTS = {
    "none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "high", "max": "high",
    "auto": None, "default": None,
}  # fmt: skip
_PROMPT = "a string, or a list of token ids, or a list of these"
NEUTRAL: dict[str, Any] = {
    "best_of": 1, "echo": False, "suffix": "", "modalities": ["text"], "functions": [],
    "function_call": ("none", "auto"),
    "include_stop_str_in_output": False, "use_beam_search": False, "bad_words": [],
    "allowed_token_ids": [],
}  # fmt: skip
"""Parameters that change what is answered and are not supported.

Each has the values at which it has no effect.
"""


@record
class CompletionRequest:
    """A request for text."""

    model: str = ""
    """The name of the model; "" for any."""
    unloads: bool = False
    """Whether the model is closed when no one uses it any more."""
    messages: tuple[PromptMessage, ...] = ()
    """The conversation to answer; empty where a text is continued."""
    begun: str = ""
    """The beginning of the reply, which goes on from it."""
    prompt: str | tuple[int, ...] = ""
    """The text to continue, or its tokens."""
    more_prompts: tuple[str | tuple[int, ...], ...] = ()
    """Further texts to continue, each by itself."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``engine.Sampling`` that the request sets."""
    max_tokens: int | None = None
    """Limit on the reply; 0 for none, None for what the settings say."""
    stops: tuple[str, ...] = ()
    n_logprobs: int | None = None
    """How many of the likeliest tokens are told with each one; None for no log-probabilities."""
    thinking: str | None = None
    """As ``ThinkingMode.parse`` reads it; None for what the settings say."""
    form: AnswerForm | None = None
    """Of the reply; None for any."""
    tools: Tools | None = None
    """Tools that the model may call; None for none."""
    n_answers: int = 1
    """Answers to the same; the seed of each is one more than that of the one before."""
    writes_nothing: bool = False
    """Whether only the prompt is counted."""
    is_streamed: bool = False
    tells_usage: bool = False
    """Whether a stream ends with the number of tokens."""

    @property
    def n_replies(self) -> int:
        """Number of replies to the request: some to each prompt."""
        return self.n_answers * (1 + len(self.more_prompts))

    def of_reply(self, index: int) -> CompletionRequest:
        """Return the request for one of its replies, those to the first prompt first."""
        prompt = index // self.n_answers
        if prompt:
            return replace(self, prompt=self.more_prompts[prompt - 1], more_prompts=())
        return self

    @property
    def is_chat(self) -> bool:
        """Whether a conversation is answered, by the model's chat template."""
        return bool(self.messages)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked: the model is only opened, or closed."""
        return not self.messages and not self.prompt


def chat_order(fields: Fields, only: str) -> CompletionRequest:
    """Read a request for ``/v1/chat/completions``; ``only``: see ``take_model``.

    Raises ApiError: it is wrong.
    """
    fields = fields.opened()
    model = take_model(fields, only)
    said = read_messages(fields)
    _check_continuation(fields, is_begun=said[-1].role == ASSISTANT)
    messages, begun = arranged(said, "messages")
    tools = read_tools(fields)
    n_top = fields.whole("top_logprobs", 0, MOST_TOP_LOGPROBS)
    order = _order(
        fields,
        model=model,
        tools=tools,
        messages=messages,
        begun=begun,
        n_logprobs=(n_top or 0) if fields.flag("logprobs") else None,
        max_tokens=read_limit(fields, "max_completion_tokens", "max_tokens", "n_predict"),
        thinking=_thinking(fields),
    )
    fields.ignore_rest()
    return order


def _check_continuation(fields: Fields, is_begun: bool) -> None:
    """Refuse what asks for another end of the prompt than the one there is.

    Args:
        is_begun: whether the last message is the assistant's: the answer goes on with it.
    """
    continues = fields.flag("continue_final_message", is_begun)
    has_prompt = fields.flag("add_generation_prompt", not is_begun)
    if continues and fields.flag("add_generation_prompt"):
        raise ApiError(
            "add_generation_prompt excludes continue_final_message", param="add_generation_prompt"
        )
    if continues and not is_begun:
        raise ApiError(
            "continue_final_message: the last message must be the assistant's", param="messages"
        )
    for name, value in (
        ("continue_final_message", continues),
        ("add_generation_prompt", not has_prompt),
    ):
        if value != is_begun:
            why = "an assistant's last message is always continued, and no other one"
            raise unsupported(name, f"is not supported as {str(fields.any(name)).lower()}: {why}")


def completion_order(fields: Fields, only: str) -> CompletionRequest:
    """Read a request for ``/v1/completions``; ``only``: as ``take_model``.

    Raises ApiError: it is wrong somewhere.
    """
    fields = fields.opened()
    model = take_model(fields, only)
    prompts = _prompts(fields)
    writes_nothing = (
        as_whole(fields.any("max_tokens")) == 0 and type(fields.any("max_tokens")) is not bool
    )
    order = _order(
        fields,
        model=model,
        prompt=prompts[0],
        more_prompts=prompts[1:],
        n_logprobs=fields.whole("logprobs", 0, MOST_TOP_LOGPROBS),
        max_tokens=None if writes_nothing else read_limit(fields, "max_tokens", "n_predict"),
        writes_nothing=writes_nothing,
    )
    if order.n_replies > MOST_ANSWERS:
        raise fields.wrong("prompt", f"at most {MOST_ANSWERS} texts, those of n counted")
    fields.ignore_rest()
    return order


def _order(fields: Fields, **own: Any) -> CompletionRequest:
    for name in IGNORED:
        fields.any(name)
    refuse_unsupported(fields, NEUTRAL)
    options = fields.table("stream_options") or Fields({})
    options.flag("include_obfuscation")  # there is no network between to hide lengths from
    tells_usage = options.flag("include_usage")
    options.ignore_rest()
    return CompletionRequest(
        **own,
        sampling=read_sampling(fields),
        stops=read_stops(fields),
        form=read_form(fields),
        n_answers=fields.whole("n", 1, MOST_ANSWERS) or 1,
        is_streamed=fields.flag("stream"),
        tells_usage=tells_usage,
    )


def take_model(fields: Fields, only: str) -> str:
    """Return the name of the model; "" for any.

    Args:
        only: the one model that is served, for which any name is taken: many programs have one that
            cannot be changed; "" where requests choose.
    """
    wanted = fields.text("model") or ""
    if only and wanted.removesuffix(LATEST) not in ("", only):
        fields.note_ignored(f"model (always {only})")
    return only or wanted


def read_limit(fields: Fields, *names: str) -> int | None:
    """Return the first limit that is given on the reply's tokens; 0 for none, None where nothing is
    said."""
    limits = [_limit(fields, name) for name in names]
    return next((limit for limit in limits if limit is not None), None)


def _limit(fields: Fields, name: str) -> int | None:
    value = as_whole(fields.any(name))
    if value is None:
        return None
    if type(value) is not int or value == 0:
        raise fields.wrong(name, "a whole number from 1 on, or -1 for no limit")
    return min(max(value, 0), MOST_TOKENS)


def refuse_unsupported(fields: Fields, neutral_values: Mapping[str, Any]) -> None:
    """Refuse what asks for something that is not done here: all but the value that asks for
    nothing."""
    for name, neutral in neutral_values.items():
        value = as_whole(fields.any(name))
        if isinstance(neutral, tuple):
            allowed = neutral
        else:
            allowed = (neutral,)
        is_neutral = any(type(value) is type(choice) and value == choice for choice in allowed)
        if value is None or is_neutral:
            continue
        choices = " or ".join(str(choice) for choice in allowed if choice != "")
        if choices:
            way_out = f"allowed: {choices}"
        else:
            way_out = "leave it out"
        raise unsupported(fields.place(name), f"is not supported ({way_out})")


def read_stops(fields: Fields) -> tuple[str, ...]:
    """Return the texts that end a reply."""
    given = fields.any("stop")
    texts: Sequence[Any] = given if isinstance(given, list) else [given]
    # a field of a form that was left empty
    texts = [text for text in texts if text not in (None, "")]
    if len(texts) > MOST_STOPS or not all(is_short_text(text, MOST_STOP_CHARS) for text in texts):
        raise fields.wrong(
            "stop", f"a string, or at most {MOST_STOPS}, of 1 to {MOST_STOP_CHARS} whole characters"
        )
    return tuple(texts)


def _thinking(fields: Fields) -> str | None:
    effort = read_effort(fields, "reasoning_effort")
    variables = fields.table("chat_template_kwargs") or Fields({})
    for name in ("enable_thinking", "thinking"):
        if variables.has(name):
            if variables.flag(name):
                effort = "on"
            else:
                effort = "off"
    variables.ignore_rest()
    return effort


def read_effort(fields: Fields, name: str) -> str | None:
    """Return how much the model shall think."""
    return EFFORTS.get(fields.word(name, *EFFORTS) or "")


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """Return the texts to continue, or their tokens; there is one at least."""
    given = fields.any("prompt")
    if given is None:
        raise fields.missing("prompt", _PROMPT)
    if (
        isinstance(given, list)
        and given
        and all(isinstance(prompt, (str, list)) for prompt in given)
    ):
        return tuple(_prompt(fields, prompt) for prompt in given[: MOST_ANSWERS + 1])
    return (_prompt(fields, given),)


def _prompt(fields: Fields, given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        return whole_text(given)
    if (
        isinstance(given, list)
        and given
        and all(type(one) is int and 0 <= one <= MOST_TOKENS for one in given)
    ):
        return tuple(given)
    raise fields.wrong("prompt", _PROMPT)

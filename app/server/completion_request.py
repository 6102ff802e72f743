"""Requests for text, whatever the dialect: the checked request, and fields that all dialects share.

A parameter that would change the reply and is not supported is refused by name. Other unknown
fields are ignored, and the log names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from app.conversations.conversation import PromptMessage
from app.forms.answer_form import AnswerForm
from app.server.api_error import unsupported
from app.server.fields import Fields, as_integer, is_short_text, replace_surrogates
from app.server.message_fields import Tools
from app.text.record import record
from engine.prompt.infill import InfillText

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1000
MIN_MOVED_TOKENS = 256
"""Default minimum of tokens of a text around a gap that is moved in the cache."""
MAX_TOKENS = 2**31 - 1
LATEST = ":latest"
"""Tag that Ollama adds to names without one: "x" and "x:latest" are the same model."""
MAX_ANSWERS = 8
"""Limit on the answers to one request."""
SILENTLY_IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "verbosity", "prediction", "audio",
)  # fmt: skip
"""Fields about a provider's accounts or computation, which the log need not name."""
EFFORTS = {
    "none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "high", "max": "high", "auto": None, "default": None,
}  # fmt: skip
"""Modes of ``ThinkingMode.parse`` by the reasoning efforts of the API."""
NEUTRAL: dict[str, Any] = {
    "best_of": 1, "echo": False, "modalities": ["text"], "functions": [],
    "function_call": ("none", "auto"), "include_stop_str_in_output": False,
    "use_beam_search": False, "bad_words": [], "allowed_token_ids": [],
}  # fmt: skip
"""Unsupported parameters, each with its values that have no effect."""


@record
class CompletionRequest:
    """A checked request for text."""

    model: str = ""
    """Name of the model; "" for any."""
    unloads_model: bool = False
    """Whether the model is closed as soon as it is idle."""
    messages: tuple[PromptMessage, ...] = ()
    """Conversation to answer; empty if a text is continued."""
    reply_prefix: str = ""
    """Beginning of the reply, which the model continues."""
    prompt: str | tuple[int, ...] = ""
    """Text to continue, or its token ids."""
    extra_prompts: tuple[str | tuple[int, ...], ...] = ()
    """Further texts, each continued by itself."""
    infill: InfillText | None = None
    """Text whose gap is filled; None if a text is continued."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``engine.Sampling`` that the request sets."""
    max_tokens: int | None = None
    """Limit on the tokens of a reply; 0 for no limit, None for the limit in the settings."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a reply."""
    n_logprobs: int | None = None
    """Number of likely alternatives to report for each token; None for no log-probabilities."""
    thinking: str | None = None
    """Mode that ``ThinkingMode.parse`` reads; None for the mode in the settings."""
    form: AnswerForm | None = None
    """Form of the reply; None for free text."""
    tools: Tools | None = None
    """Tools that the model knows; None for no tools."""
    n_answers: int = 1
    """Number of answers to each prompt. Each one adds 1 to the seed of the one before."""
    counts_prompt_only: bool = False
    """Whether only the tokens of the prompt are counted."""
    reads_only: bool = False
    """Whether the prompt is read ahead of later requests, and nothing is written."""
    min_indent: int = 0
    """Number of blanks; a further line that begins with fewer ends the reply. 0 for any line."""
    line_limit_s: float = 0.0
    """Time of writing after which the reply ends with the next line; 0 for no limit."""
    min_moved_tokens: int | None = None
    """Minimum of tokens of a text that is moved in the cache instead of read again; 0 to move none,
    None for ``MIN_MOVED_TOKENS`` where a gap is filled and 0 elsewhere."""
    response_fields: tuple[str, ...] | None = None
    """Paths of the fields that llama-server's clients want in the response; None for all."""
    is_streamed: bool = False
    """Whether the client wants the reply as a stream."""
    includes_usage: bool = False
    """Whether a stream ends with the numbers of tokens."""

    @property
    def n_replies(self) -> int:
        """Number of replies to all prompts."""
        return self.n_answers * (1 + len(self.extra_prompts))

    def for_reply(self, index: int) -> CompletionRequest:
        """Return the request for a single reply; the replies to the first prompt come first."""
        prompt_index = index // self.n_answers
        if prompt_index == 0:
            return self
        return replace(self, prompt=self.extra_prompts[prompt_index - 1], extra_prompts=())

    def supersedes(self, older: CompletionRequest) -> bool:
        """Whether this request fills the gap of an older one after more was typed.

        Reading ahead supersedes nothing: editors send other files so. A gap at the end of a file
        is known by the text before it, since every file may end with one.
        """
        if self.infill is None or older.infill is None or self.reads_only:
            return False
        has_same_suffix = self.infill.suffix == older.infill.suffix != ""
        has_same_prefix = self.infill.prefix == older.infill.prefix
        return (has_same_suffix or has_same_prefix) and self.infill != older.infill

    @property
    def moved_tokens(self) -> int:
        """Minimum of tokens of a text that is moved in the cache; 0 if none is."""
        if self.min_moved_tokens is not None:
            return self.min_moved_tokens
        if self.infill is not None:
            return MIN_MOVED_TOKENS
        return 0

    @property
    def is_chat(self) -> bool:
        """Whether the request has messages for the chat template."""
        return bool(self.messages)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer: the client only opens or closes the model."""
        return not self.messages and not self.prompt and self.infill is None


def read_model_name(fields: Fields, served_model: str) -> str:
    """Return the name of the requested model, or "" for any.

    Args:
        served_model: Name of the only model that is served. It answers to every name, because many
            programs send a name that cannot be changed. "" if requests choose the model.
    """
    name = fields.text("model") or ""
    if served_model and name.removesuffix(LATEST) not in ("", served_model):
        fields.ignore(f"model (always {served_model})")
    return served_model or name


def read_limit(fields: Fields, *names: str) -> int | None:
    """Return the first of the token limits that is set: 0 for no limit, None if none is set."""
    limits = [_read_limit(fields, name) for name in names]
    return next((limit for limit in limits if limit is not None), None)


def _read_limit(fields: Fields, name: str) -> int | None:
    value = as_integer(fields.value(name))
    if value is None:
        return None
    if type(value) is not int or value == 0:
        raise fields.wrong_value(name, "an integer of 1 or more, or -1 for no limit")
    return min(max(value, 0), MAX_TOKENS)


def refuse_unsupported(fields: Fields, neutral_values: Mapping[str, Any]) -> None:
    """Refuse unsupported parameters.

    Args:
        neutral_values: The parameters, each with the value, or a tuple of values, that has no
            effect and is accepted.
    """
    for name, neutral in neutral_values.items():
        value = as_integer(fields.value(name))
        allowed = neutral if isinstance(neutral, tuple) else (neutral,)
        is_neutral = any(type(value) is type(choice) and value == choice for choice in allowed)
        if value is None or is_neutral:
            continue

        choices = " or ".join(str(choice) for choice in allowed if choice != "")
        if choices:
            advice = f"allowed: {choices}"
        else:
            advice = "leave it out"
        raise unsupported(fields.path(name), f"is not supported ({advice})")


def read_stop_strings(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """Return the texts that end a reply."""
    value = fields.value(name)
    texts: Sequence[Any] = value if isinstance(value, list) else [value]
    # Forms of clients send an empty field.
    texts = [text for text in texts if text not in (None, "")]

    if len(texts) > MAX_STOP_STRINGS or not all(
        is_short_text(text, MAX_STOP_CHARS) for text in texts
    ):
        raise fields.wrong_value(
            name,
            f"a string or at most {MAX_STOP_STRINGS} strings, each of 1 to {MAX_STOP_CHARS} valid "
            "characters",
        )
    return tuple(texts)


def read_suffix(fields: Fields) -> str:
    """Return the text after the gap that a reply fills; "" if nothing is filled in."""
    suffix = fields.value("suffix")
    if suffix is not None and not isinstance(suffix, str):
        raise fields.wrong_value("suffix", "a string")
    return replace_surrogates(suffix or "")


def read_effort(fields: Fields, name: str) -> str | None:
    """Return the thinking mode for a reasoning effort; None if it is not set."""
    return EFFORTS.get(fields.choice(name, *EFFORTS) or "")

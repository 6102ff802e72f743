"""llama-server's dialect for text: ``/completion``, and ``/infill`` for editors.

Source: tools/server/README.md of ggml-org/llama.cpp, and the requests of llama.vim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.server.api_error import ApiError, unsupported
from app.server.completion_request import (
    MAX_TOKENS,
    CompletionRequest,
    read_limit,
    read_model_name,
    read_stop_strings,
)
from app.server.dialects.openai_request import read_prompts
from app.server.fields import Fields, as_integer, replace_surrogates
from app.server.form_fields import read_form
from app.server.reply_task import Finish, PromptAccepted, ReplyEvent, ReplyPiece
from app.server.sampling_fields import read_sampling
from engine.prompt.infill import InfillText

MAX_OTHER_TEXTS = 10_000
MAX_RESPONSE_FIELDS = 100
MAX_INDENT = 10_000
MAX_LIMIT_MS = 86_400_000
SMALLEST_MOVED_TOKENS = 64
"""Minimum of tokens that are moved in the cache if a request wants fewer: moving them takes longer
than reading them."""
_UNNAMED = "tmp"
"""Name of a text without one, as in llama-server."""
_TEXT = "a string"
_IGNORED = (
    "id_slot", "cache_prompt", "t_max_prompt_ms", "n_keep", "n_discard", "timings_per_token",
    "return_tokens", "post_sampling_probs", "return_progress",
)  # fmt: skip
"""Fields about llama-server's slots and its cache, without influence on the reply."""


def read_completion_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/completion``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    prompts = read_prompts(fields)
    if len(prompts) > 1:
        raise fields.wrong_value("prompt", "a single text or a list of token ids")
    return _read_request(fields, served_model, prompt=prompts[0])


def read_infill_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/infill``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    others = []
    for index, item in enumerate(fields.array("input_extra", MAX_OTHER_TEXTS) or ()):
        other = fields.array_item(item, f"input_extra[{index}]")
        name = _read_text(other, "filename", _UNNAMED)
        others.append((name, _read_text(other, "text")))
    infill = InfillText(
        _read_text(fields, "input_prefix"),
        _read_text(fields, "input_suffix"),
        _read_text(fields, "prompt", ""),
        others,
    )
    return _read_request(fields, served_model, infill=infill)


def _read_text(fields: Fields, name: str, default: str | None = None) -> str:
    value = fields.value(name)
    if value is None:
        value = fields.required(default, name, _TEXT)
    if not isinstance(value, str):
        raise fields.wrong_value(name, _TEXT)
    return replace_surrogates(value)


def _read_request(fields: Fields, served_model: str, **values: Any) -> CompletionRequest:
    """Read the fields that both paths share."""
    for name in _IGNORED:
        fields.mark_read(name)
    if fields.has("n_probs") and as_integer(fields.value("n_probs")) != 0:
        raise unsupported("n_probs", "is not supported here (use logprobs in /v1/completions)")

    limit = as_integer(fields.value("n_predict"))
    reads_only = limit == 0 and type(limit) is not bool
    max_tokens: int | None = None
    if not reads_only:
        max_tokens = read_limit(fields, "n_predict", "max_tokens")
    limit_ms = fields.number("t_max_predict_ms", -1, MAX_LIMIT_MS) or 0.0
    response_fields = fields.array("response_fields", MAX_RESPONSE_FIELDS)
    if response_fields is not None and not all(isinstance(name, str) for name in response_fields):
        raise fields.wrong_value("response_fields", "a list of strings")

    request = CompletionRequest(
        **values,
        model=read_model_name(fields, served_model),
        sampling=read_sampling(fields),
        max_tokens=max_tokens,
        reads_only=reads_only,
        min_indent=fields.integer("n_indent", 0, MAX_INDENT) or 0,
        line_limit_s=max(0.0, limit_ms) / 1000,
        stop_strings=read_stop_strings(fields),
        form=read_form(fields),
        min_moved_tokens=_read_moved_tokens(fields),
        response_fields=None if response_fields is None else tuple(response_fields),
        is_streamed=fields.flag("stream"),
    )
    fields.ignore_rest()
    return request


def _read_moved_tokens(fields: Fields) -> int | None:
    """Return the minimum of tokens that are moved in the cache; 0 for none, None if it is not
    set."""
    n_tokens = fields.integer("n_cache_reuse", 0, MAX_TOKENS)
    if n_tokens:
        return max(n_tokens, SMALLEST_MOVED_TOKENS)
    return n_tokens


class LlamaServerEncoder:
    """Encodes one reply for ``/completion`` and ``/infill``."""

    ends_with_done = False
    is_ndjson = False

    def __init__(self, request: CompletionRequest, model_id: str) -> None:
        self._response_fields = request.response_fields
        self._model_id = model_id

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return an object with the only reply."""
        piece, finish = replies[0]
        fields = self._final_fields(piece.answer, finish)
        if self._response_fields is None:
            return fields
        return _picked(fields, self._response_fields)

    def encode_event(self, event: ReplyEvent, index: int = 0) -> list[dict[str, Any]]:
        """Return the objects that a stream sends for an event."""
        match event:
            case PromptAccepted():
                return []
            case ReplyPiece():
                return [{"index": 0, "content": event.answer, "tokens": [], "stop": False}]
            case Finish():
                return [self._final_fields("", event)]

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return an empty list: a comment keeps clients waiting."""
        return []

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the object that ends a stream after an error."""
        return error.body()

    def _final_fields(self, content: str, finish: Finish) -> dict[str, Any]:
        stop_type = "eos"
        if finish.reason == "length":
            stop_type = "limit"
        elif finish.stop_string:
            stop_type = "word"
        return {
            "index": 0,
            "content": content,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self._model_id,
            "tokens_predicted": finish.tokens,
            "tokens_evaluated": finish.prompt_tokens,
            "tokens_cached": finish.prompt_tokens + finish.tokens,
            "truncated": finish.is_cut,
            "stop_type": stop_type,
            "stopping_word": finish.stop_string,
            "timings": {
                "cache_n": finish.cached_tokens,
                **_timing("prompt", finish.prompt_tokens - finish.cached_tokens, finish.prefill_s),
                **_timing("predicted", finish.tokens, finish.decode_s),
            },
        }


def _timing(name: str, n_tokens: int, seconds: float) -> dict[str, Any]:
    per_token_ms = 0.0
    per_second = 0.0
    if n_tokens and seconds > 0:
        per_token_ms = 1000 * seconds / n_tokens
        per_second = n_tokens / seconds
    return {
        f"{name}_n": n_tokens,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": per_token_ms,
        f"{name}_per_second": per_second,
    }


def _picked(fields: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the values at paths such as ``timings/prompt_n``, each with its path as the key."""
    picked: dict[str, Any] = {}
    for path in paths:
        value: Any = fields
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            picked[path] = value
    return picked

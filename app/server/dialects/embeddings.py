"""Short work, which is done between two steps of what is written.

It is tokens of texts, vectors, and documents in order.

Each function reads a request, before its model is open, and returns what makes its answer. Raises
ApiError: something in it is wrong.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.server.api_error import ApiError, invalid
from app.server.dialects.ollama import closes_model
from app.server.fields import Fields, kind_of
from app.text.record import record
from engine.errors import ContextFullError, EngineError

MOST_TOKENIZED_CHARS = 1 << 18
_MOST_IDS = 1 << 18
MOST_TEXTS = 2048
"""Limit on the texts of a request, as OpenAI's."""
_FLOAT = "float"
_BASE64 = "base64"


@record
class Work:
    """Short work that a request asks for."""

    compute: Callable[[str, Any], dict[str, Any]]
    """Returns the answer; is handed the name of the model, and the model."""
    unloads: bool = False
    """Whether the model is closed when no one uses it any more."""


def tokenize_work(fields: Fields) -> Work:
    """Read a request of llama-server's ``/tokenize``."""
    text = fields.required(fields.text("content"), "content", "a string")
    if len(text) > MOST_TOKENIZED_CHARS:
        raise ApiError(
            f"content is longer than {MOST_TOKENIZED_CHARS} characters", 413, "content", "too_long"
        )
    adds_special = fields.flag("add_special")
    parses_special = fields.flag("parse_special", True)
    with_pieces = fields.flag("with_pieces")

    def compute(name: str, model: Any) -> dict[str, Any]:
        ids = model.tokenizer.encode(
            text, bos=None if adds_special else False, special=parses_special
        )
        return {
            "tokens": [_with_piece(model.tokenizer, one) if with_pieces else one for one in ids]
        }

    return Work(compute)


def _with_piece(tokenizer: Any, token_id: int) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}


def detokenize_work(fields: Fields) -> Work:
    """Read a request of llama-server's ``/detokenize``."""
    ids = fields.required(fields.items("tokens", _MOST_IDS), "tokens", "a list of token ids")

    def compute(name: str, model: Any) -> dict[str, Any]:
        n_vocab = model.tokenizer.vocab_size
        if not all(type(one) is int and 0 <= one < n_vocab for one in ids):
            raise invalid("tokens", f"must be token ids from 0 to {n_vocab - 1}")
        return {"content": model.tokenizer.decode(ids)}

    return Work(compute)


def embedding_work(fields: Fields) -> Work:
    """Read a request of ``/v1/embeddings``."""
    texts = _inputs(fields)
    n_wanted = _dimensions(fields)
    form = fields.word("encoding_format", _FLOAT, _BASE64) or _FLOAT
    fields.any("user")

    def compute(name: str, model: Any) -> dict[str, Any]:
        vectors, n_tokens = _vectors(model, texts, n_wanted)
        data: list[dict[str, Any]] = []
        for index, one in enumerate(vectors):
            if form == _FLOAT:
                told = one.tolist()
            else:
                told = base64.b64encode(one.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": told})
        return {"object": "list", "data": data, "model": name, "usage": _usage(n_tokens)}

    return Work(compute)


def ollama_embed_work(fields: Fields) -> Work:
    """Read a request of Ollama's ``/api/embed``.

    A text that is too long is cut; no text has no vectors.
    """
    began_ns = time.monotonic_ns()
    texts: list[str | list[int]] = []
    if fields.any("input") not in (None, "", []):
        texts = _inputs(fields)
    n_wanted = _dimensions(fields)
    truncates = fields.flag("truncate", True)
    fields.any("options")  # how a vector is computed has none

    def compute(name: str, model: Any) -> dict[str, Any]:
        loaded_ns = time.monotonic_ns()
        vectors, n_tokens = _vectors(model, texts, n_wanted, truncates)
        return {
            "model": name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": time.monotonic_ns() - began_ns,
            "load_duration": loaded_ns - began_ns,
            "prompt_eval_count": n_tokens,
        }

    return Work(compute, closes_model(fields))


def ollama_embedding_work(fields: Fields) -> Work:
    """Read a request of Ollama's older ``/api/embeddings``: the vector of one text."""
    prompt = fields.text("prompt") or ""
    fields.any("options")

    def compute(name: str, model: Any) -> dict[str, Any]:
        vectors, _ = _vectors(model, [prompt] if prompt else [], None, truncates=True)
        return {"embedding": vectors[0].tolist() if vectors else []}

    return Work(compute, closes_model(fields))


def rerank_work(fields: Fields) -> Work:
    """Read a request of ``/v1/rerank``."""
    query = fields.required(fields.text("query"), "query", "a string")
    documents = fields.required(
        fields.items("documents", MOST_TEXTS), "documents", "a list of texts"
    )
    texts = [one.get("text") if isinstance(one, dict) else one for one in documents]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(
                f"documents[{index}]", f"is {kind_of(documents[index])}: must be a string"
            )
    n_best = fields.whole("top_n", 0, 1 << 31)
    returns_documents = fields.flag("return_documents")

    def compute(name: str, model: Any) -> dict[str, Any]:
        results = []
        n_tokens = 0
        for index, text in enumerate(texts):
            ids = model.pair_ids(query, text)
            score = _computed(f"documents[{index}]", model.embedder.rank, ids)
            if returns_documents:
                document = {"document": {"text": text}}
            else:
                document = {}
            results.append({"index": index, "relevance_score": score, **document})
            n_tokens += len(ids)
        results.sort(key=lambda one: -one["relevance_score"])
        return {
            "object": "list",
            "model": name,
            "usage": _usage(n_tokens),
            "results": results[:n_best],
        }

    return Work(compute)


def _inputs(fields: Fields) -> list[str | list[int]]:
    """Return the texts, each of which may be tokens."""
    value = fields.any("input")
    if value is None:
        raise fields.missing("input", "a text, or a list of texts")
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(type(one) is int for one in value)
    ):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_TEXTS:
        raise fields.wrong("input", f"a text, or a list of 1 to {MOST_TEXTS} texts")
    for index, one in enumerate(value):
        if not isinstance(one, str) and not (
            isinstance(one, list) and all(type(token) is int for token in one)
        ):
            raise invalid(
                f"input[{index}]", f"is {kind_of(one)}: must be a string, or a list of token ids"
            )
    return value


def _dimensions(fields: Fields) -> int | None:
    """Return how many elements a vector shall have; None for all."""
    return fields.whole("dimensions", 1, 1 << 20)


def _vectors(
    model: Any, texts: list[str | list[int]], n_wanted: int | None, truncates: bool = False
) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Return a vector of each text, and the tokens of all.

    With ``truncates``, a text that is too long has the vector of its beginning.
    """
    embedder = model.embedder
    vectors = []
    n_tokens = 0
    if n_wanted is not None and n_wanted > embedder.dim:
        raise invalid("dimensions", f"is {n_wanted}: this model has {embedder.dim}")
    for text in texts:
        if truncates:
            ids = _truncated_ids(model, text)
        else:
            ids = _ids(model, text)
        vectors.append(_shortened(_computed("input", embedder.embed, ids), n_wanted))
        n_tokens += len(ids)
    return vectors, n_tokens


def _ids(model: Any, text: str | list[int]) -> list[int]:
    ids: list[int] = model.tokenizer.encode(text, special=False) if isinstance(text, str) else text
    return ids


def _truncated_ids(model: Any, text: str | list[int]) -> list[int]:
    """Return the tokens of a text, or as many of its first ones as the model takes.

    The token that ends a text is among them.
    """
    tokenizer = model.tokenizer
    n_ctx = model.embedder.n_ctx
    if isinstance(text, list):
        return text  # whoever counts tokens is told that there are too many
    # what is behind them has no place
    ids = _ids(model, text[: n_ctx * tokenizer.most_token_bytes])
    if len(ids) <= n_ctx:
        return ids
    has_end = tokenizer.add_eos and tokenizer.eos_id is not None
    if has_end:
        return [*ids[: n_ctx - 1], ids[-1]]
    return ids[:n_ctx]


def _shortened(vector: np.ndarray[Any, Any], n: int | None) -> np.ndarray[Any, Any]:
    """Return the first n elements at unit length: of models that are trained for it, they have the
    most meaning."""
    if n is None or n == len(vector):
        return vector
    length = float(np.linalg.norm(vector[:n]))
    if length:
        return vector[:n] / length
    return vector[:n]


def _computed(place: str, compute: Callable[[list[int]], Any], ids: list[int]) -> Any:
    try:
        return compute(ids)
    except EngineError as error:
        if type(error) not in (EngineError, ContextFullError):
            raise
        if isinstance(error, ContextFullError):
            code = "context_length_exceeded"
        else:
            code = "invalid_value"
        raise ApiError(f"{place}: {error}", param=place, code=code) from None


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}

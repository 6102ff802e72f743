"""Vectors of texts, and documents in the order in which they answer a query: what a request says, and its answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.server.api_error import ApiError
from app.server.fields import Fields, kind_of
from engine.errors import ContextFullError, EngineError

MOST_TEXTS = 2048
"""Limit on the texts of a request, as OpenAI's."""
_FLOAT, _BASE64 = "float", "base64"
Work = Callable[[Any], dict[str, Any]]
"""Is handed the model and returns the answer."""


def embedding_work(fields: Fields, model_id: str) -> Work:
    """Read a request of ``/v1/embeddings``. Raises ApiError: something in it is wrong."""
    texts = _inputs(fields)
    form = fields.word("encoding_format", _FLOAT, _BASE64) or _FLOAT
    n_wanted = fields.whole("dimensions", 1, 1 << 20)
    _ignore_rest(fields)

    def work(model: Any) -> dict[str, Any]:
        data: list[dict[str, Any]] = []
        vectors, n_tokens = _vectors(model, texts, n_wanted)
        for index, vector in enumerate(vectors):
            told = vector.tolist() if form == _FLOAT else base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": told})
        return {"object": "list", "data": data, "model": model_id, "usage": _usage(n_tokens)}

    return work


def ollama_work(fields: Fields, model_id: str) -> Work:
    """Read a request of Ollama's ``/api/embed``. Raises ApiError: something in it is wrong."""
    texts = _inputs(fields)
    n_wanted = fields.whole("dimensions", 1, 1 << 20)
    for name in ("options", "keep_alive"):  # how a vector is computed has no options
        fields.any(name)
    _ignore_rest(fields)

    def work(model: Any) -> dict[str, Any]:
        started_ns = time.monotonic_ns()
        vectors, n_tokens = _vectors(model, texts, n_wanted)
        return {
            "model": model_id,
            "embeddings": [one.tolist() for one in vectors],
            "total_duration": time.monotonic_ns() - started_ns,
            "load_duration": 0,
            "prompt_eval_count": n_tokens,
        }

    return work


def rerank_work(fields: Fields, model_id: str) -> Work:
    """Read a request of ``/v1/rerank``. Raises ApiError: something in it is wrong."""
    query = fields.required(fields.text("query"), "query", "a string")
    documents = fields.required(fields.items("documents", MOST_TEXTS), "documents", "a list of texts")
    texts = [one.get("text") if isinstance(one, dict) else one for one in documents]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise _wrong(f"documents[{index}]", f"is {kind_of(documents[index])}: must be a string")
    n_best = fields.whole("top_n", 0, 1 << 31)
    returns_documents = fields.flag("return_documents")
    _ignore_rest(fields)

    def work(model: Any) -> dict[str, Any]:
        embedder, results, n_tokens = model.embedder, [], 0
        for index, text in enumerate(texts):
            ids = model.pair_ids(query, text)
            score = _computed(f"documents[{index}]", embedder.rank, ids)
            document = {"document": {"text": text}} if returns_documents else {}
            results.append({"index": index, "relevance_score": score, **document})
            n_tokens += len(ids)
        results.sort(key=lambda one: -one["relevance_score"])
        best = results if n_best is None else results[:n_best]
        return {"object": "list", "model": model_id, "usage": _usage(n_tokens), "results": best}

    return work


def _vectors(model: Any, texts: list[str | list[int]], n_wanted: int | None) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Return a vector of each text, and the tokens of all."""
    embedder, n_tokens = model.embedder, 0
    if n_wanted is not None and n_wanted > embedder.dim:
        raise _wrong("dimensions", f"is {n_wanted}: this model has {embedder.dim}")
    vectors = []
    for one in texts:
        ids = model.tokenizer.encode(one, special=False) if isinstance(one, str) else one
        vectors.append(shortened(_computed("input", embedder.embed, ids), n_wanted))
        n_tokens += len(ids)
    return vectors, n_tokens


def shortened(vector: np.ndarray[Any, Any], n: int | None) -> np.ndarray[Any, Any]:
    """Return the first n elements at unit length: of models that are trained for it, they have the most meaning."""
    if n is None or n == len(vector):
        return vector
    length = float(np.linalg.norm(vector[:n]))
    return vector[:n] / length if length else vector[:n]


def _inputs(fields: Fields) -> list[str | list[int]]:
    """Return the texts: one, or a list of them; each may be tokens."""
    value = fields.any("input")
    if value is None:
        raise fields.missing("input", "a text, or a list of texts")
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(one) is int for one in value)):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_TEXTS:
        raise fields.wrong("input", f"a text, or a list of 1 to {MOST_TEXTS} texts")
    for index, one in enumerate(value):
        if not isinstance(one, str) and not (isinstance(one, list) and all(type(token) is int for token in one)):
            raise _wrong(f"input[{index}]", f"is {kind_of(one)}: must be a string, or a list of token ids")
    return value


def _computed(place: str, compute: Callable[[list[int]], Any], ids: list[int]) -> Any:
    try:
        return compute(ids)
    except EngineError as error:
        if type(error) not in (EngineError, ContextFullError):
            raise
        code = "context_length_exceeded" if isinstance(error, ContextFullError) else "invalid_value"
        raise ApiError(f"{place}: {error}", param=place, code=code) from None


def _wrong(place: str, why: str) -> ApiError:
    return ApiError(f"{place} {why}", param=place, code="invalid_value")


def _ignore_rest(fields: Fields) -> None:
    for name in ("model", "user"):  # whatever they say
        fields.any(name)
    fields.ignore_rest()


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}

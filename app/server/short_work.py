"""Short work, which is done between two steps of what is written: tokens of texts, vectors, documents in order.

Each function reads a request, and returns what makes its answer. Raises ApiError: something in it is wrong.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.server.api_error import ApiError, invalid
from app.server.fields import Fields, kind_of
from engine.errors import ContextFullError, EngineError

MOST_TOKENIZED_CHARS = 1 << 18
_MOST_IDS = 1 << 18
MOST_TEXTS = 2048
"""Limit on the texts of a request, as OpenAI's."""
_FLOAT, _BASE64 = "float", "base64"
Work = Callable[[Any], dict[str, Any]]
"""Is handed the model and returns the answer."""


def tokenize_work(fields: Fields, model_id: str) -> Work:
    """Read a request of llama-server's ``/tokenize``."""
    text = fields.required(fields.text("content"), "content", "a string")
    if len(text) > MOST_TOKENIZED_CHARS:
        raise ApiError(f"content is longer than {MOST_TOKENIZED_CHARS} characters", 413, "content", "too_long")
    adds_special, parses_special = fields.flag("add_special"), fields.flag("parse_special", True)
    with_pieces = fields.flag("with_pieces")

    def work(model: Any) -> dict[str, Any]:
        ids = model.tokenizer.encode(text, bos=None if adds_special else False, special=parses_special)
        return {"tokens": [_with_piece(model.tokenizer, one) if with_pieces else one for one in ids]}

    return work


def _with_piece(tokenizer: Any, token_id: int) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}


def detokenize_work(fields: Fields, model_id: str) -> Work:
    """Read a request of llama-server's ``/detokenize``."""
    ids = fields.required(fields.items("tokens", _MOST_IDS), "tokens", "a list of token ids")

    def work(model: Any) -> dict[str, Any]:
        n_vocab = model.tokenizer.vocab_size
        if not all(type(one) is int and 0 <= one < n_vocab for one in ids):
            raise invalid("tokens", f"must be token ids from 0 to {n_vocab - 1}")
        return {"content": model.tokenizer.decode(ids)}

    return work


def embedding_work(fields: Fields, model_id: str) -> Work:
    """Read a request of ``/v1/embeddings``."""
    texts, n_wanted = _inputs(fields)
    form = fields.word("encoding_format", _FLOAT, _BASE64) or _FLOAT
    fields.any("user")

    def work(model: Any) -> dict[str, Any]:
        vectors, n_tokens = _vectors(model, texts, n_wanted)
        data: list[dict[str, Any]] = []
        for index, one in enumerate(vectors):
            told = one.tolist() if form == _FLOAT else base64.b64encode(one.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": told})
        return {"object": "list", "data": data, "model": model_id, "usage": _usage(n_tokens)}

    return work


def ollama_work(fields: Fields, model_id: str) -> Work:
    """Read a request of Ollama's ``/api/embed``."""
    texts, n_wanted = _inputs(fields)
    for name in ("options", "keep_alive"):  # how a vector is computed has no options
        fields.any(name)

    def work(model: Any) -> dict[str, Any]:
        started_ns = time.monotonic_ns()
        vectors, n_tokens = _vectors(model, texts, n_wanted)
        times = {"total_duration": time.monotonic_ns() - started_ns, "load_duration": 0}
        embeddings = [one.tolist() for one in vectors]
        return {"model": model_id, "embeddings": embeddings, "prompt_eval_count": n_tokens, **times}

    return work


def rerank_work(fields: Fields, model_id: str) -> Work:
    """Read a request of ``/v1/rerank``."""
    query = fields.required(fields.text("query"), "query", "a string")
    documents = fields.required(fields.items("documents", MOST_TEXTS), "documents", "a list of texts")
    texts = [one.get("text") if isinstance(one, dict) else one for one in documents]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"documents[{index}]", f"is {kind_of(documents[index])}: must be a string")
    n_best = fields.whole("top_n", 0, 1 << 31)
    returns_documents = fields.flag("return_documents")

    def work(model: Any) -> dict[str, Any]:
        results, n_tokens = [], 0
        for index, text in enumerate(texts):
            ids = model.pair_ids(query, text)
            score = _computed(f"documents[{index}]", model.embedder.rank, ids)
            document = {"document": {"text": text}} if returns_documents else {}
            results.append({"index": index, "relevance_score": score, **document})
            n_tokens += len(ids)
        results.sort(key=lambda one: -one["relevance_score"])
        return {"object": "list", "model": model_id, "usage": _usage(n_tokens), "results": results[:n_best]}

    return work


def _inputs(fields: Fields) -> tuple[list[str | list[int]], int | None]:
    """Return the texts, each of which may be tokens, and how many elements a vector shall have."""
    value = fields.any("input")
    if value is None:
        raise fields.missing("input", "a text, or a list of texts")
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(one) is int for one in value)):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_TEXTS:
        raise fields.wrong("input", f"a text, or a list of 1 to {MOST_TEXTS} texts")
    for index, one in enumerate(value):
        if not isinstance(one, str) and not (isinstance(one, list) and all(type(token) is int for token in one)):
            raise invalid(f"input[{index}]", f"is {kind_of(one)}: must be a string, or a list of token ids")
    return value, fields.whole("dimensions", 1, 1 << 20)


def _vectors(model: Any, texts: list[str | list[int]], n_wanted: int | None) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Return a vector of each text, and the tokens of all."""
    embedder, vectors, n_tokens = model.embedder, [], 0
    if n_wanted is not None and n_wanted > embedder.dim:
        raise invalid("dimensions", f"is {n_wanted}: this model has {embedder.dim}")
    for one in texts:
        ids = model.tokenizer.encode(one, special=False) if isinstance(one, str) else one
        vectors.append(_shortened(_computed("input", embedder.embed, ids), n_wanted))
        n_tokens += len(ids)
    return vectors, n_tokens


def _shortened(vector: np.ndarray[Any, Any], n: int | None) -> np.ndarray[Any, Any]:
    """Return the first n elements at unit length: of models that are trained for it, they have the most meaning."""
    if n is None or n == len(vector):
        return vector
    length = float(np.linalg.norm(vector[:n]))
    return vector[:n] / length if length else vector[:n]


def _computed(place: str, compute: Callable[[list[int]], Any], ids: list[int]) -> Any:
    try:
        return compute(ids)
    except EngineError as error:
        if type(error) not in (EngineError, ContextFullError):
            raise
        code = "context_length_exceeded" if isinstance(error, ContextFullError) else "invalid_value"
        raise ApiError(f"{place}: {error}", param=place, code=code) from None


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}

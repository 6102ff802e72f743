"""Embeddings and ranking: ``/v1/embeddings``, ``/v1/rerank``, and Ollama's ``/api/embed`` and
``/api/embeddings``.

Each function reads a request before its model is open. They raise ApiError for a wrong field.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.server.api_error import ApiError, invalid
from app.server.dialects.computation import Computation
from app.server.dialects.ollama import unloads_model
from app.server.fields import Fields, describe
from engine.errors import ContextFullError, EngineError

MAX_TEXTS = 2048
"""Limit on the texts of a request, the same as OpenAI's."""
_FLOAT = "float"
_BASE64 = "base64"


def read_embedding_request(fields: Fields) -> Computation:
    """Read a request for ``/v1/embeddings``."""
    texts = _read_texts(fields)
    dimensions = _read_dimensions(fields)
    encoding = fields.choice("encoding_format", _FLOAT, _BASE64) or _FLOAT
    fields.mark_read("user")

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        vectors, n_tokens = _embed(model, texts, dimensions)
        data: list[dict[str, Any]] = []
        for index, vector in enumerate(vectors):
            if encoding == _FLOAT:
                embedding = vector.tolist()
            else:
                embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": embedding})
        return {"object": "list", "data": data, "model": model_name, "usage": _usage(n_tokens)}

    return Computation(compute)


def read_ollama_embed_request(fields: Fields) -> Computation:
    """Read a request for Ollama's ``/api/embed``.

    A text that is too long is cut. A request without texts gets no vectors.
    """
    start_ns = time.monotonic_ns()
    texts: list[str | list[int]] = []
    if fields.value("input") not in (None, "", []):
        texts = _read_texts(fields)
    dimensions = _read_dimensions(fields)
    truncates = fields.flag("truncate", True)
    fields.mark_read("options")  # No option changes a vector.

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        loaded_ns = time.monotonic_ns()
        vectors, n_tokens = _embed(model, texts, dimensions, truncates)
        return {
            "model": model_name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": time.monotonic_ns() - start_ns,
            "load_duration": loaded_ns - start_ns,
            "prompt_eval_count": n_tokens,
        }

    return Computation(compute, unloads_model(fields))


def read_ollama_embedding_request(fields: Fields) -> Computation:
    """Read a request for Ollama's older ``/api/embeddings``, which has one text."""
    prompt = fields.text("prompt") or ""
    fields.mark_read("options")

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        if not prompt:
            return {"embedding": []}
        vectors, _ = _embed(model, [prompt], None, truncates=True)
        return {"embedding": vectors[0].tolist()}

    return Computation(compute, unloads_model(fields))


def read_rerank_request(fields: Fields) -> Computation:
    """Read a request for ``/v1/rerank``."""
    query = fields.required(fields.text("query"), "query", "a string")
    documents = fields.required(
        fields.array("documents", MAX_TEXTS), "documents", "a list of texts"
    )
    texts = [
        document.get("text") if isinstance(document, dict) else document for document in documents
    ]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(
                f"documents[{index}]", f"is {describe(documents[index])}: must be a string"
            )
    n_best = fields.integer("top_n", 0, 1 << 31)
    returns_documents = fields.flag("return_documents")

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        n_tokens = 0
        for index, text in enumerate(texts):
            ids = model.pair_ids(query, text)
            score = _compute(f"documents[{index}]", model.embedder.rank, ids)
            result = {"index": index, "relevance_score": score}
            if returns_documents:
                result["document"] = {"text": text}
            results.append(result)
            n_tokens += len(ids)
        results.sort(key=lambda result: -result["relevance_score"])
        return {
            "object": "list",
            "model": model_name,
            "usage": _usage(n_tokens),
            "results": results[:n_best],
        }

    return Computation(compute)


def _read_texts(fields: Fields) -> list[str | list[int]]:
    """Return the texts; a text may be a list of token ids."""
    value = fields.value("input")
    if value is None:
        raise fields.missing_value("input", "a text, or a list of texts")
    if isinstance(value, str) or (_are_ids(value) and len(value) > 0):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TEXTS:
        raise fields.wrong_value("input", f"a text, or a list of 1 to {MAX_TEXTS} texts")
    for index, text in enumerate(value):
        if not isinstance(text, str) and not _are_ids(text):
            raise invalid(
                f"input[{index}]",
                f"is {describe(text)}: must be a string, or a list of token ids",
            )
    return value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token_id) is int for token_id in value)


def _read_dimensions(fields: Fields) -> int | None:
    """Return the requested length of vectors; None for the full length."""
    return fields.integer("dimensions", 1, 1 << 20)


def _embed(
    model: Any, texts: list[str | list[int]], dimensions: int | None, truncates: bool = False
) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Return a vector for each text, and the number of tokens of all texts.

    With ``truncates``, only the beginning of a text that is too long is used.
    """
    embedder = model.embedder
    if dimensions is not None and dimensions > embedder.dim:
        raise invalid("dimensions", f"is {dimensions}: this model has {embedder.dim}")

    vectors = []
    n_tokens = 0
    for text in texts:
        if truncates:
            ids = _truncated_ids(model, text)
        else:
            ids = _ids(model, text)
        vectors.append(_shorten(_compute("input", embedder.embed, ids), dimensions))
        n_tokens += len(ids)
    return vectors, n_tokens


def _ids(model: Any, text: str | list[int]) -> list[int]:
    if isinstance(text, list):
        return text
    ids: list[int] = model.tokenizer.encode(text, special=False)
    return ids


def _truncated_ids(model: Any, text: str | list[int]) -> list[int]:
    """Return the tokens of a text, at most as many as the model accepts.

    The token that ends texts stays. A list of token ids is not cut: clients that count tokens are
    to see the error.
    """
    if isinstance(text, list):
        return text
    tokenizer = model.tokenizer
    n_ctx = model.embedder.n_ctx
    # Characters beyond this have no tokens within the context.
    ids = _ids(model, text[: n_ctx * tokenizer.most_token_bytes])
    if len(ids) <= n_ctx:
        return ids
    has_end = tokenizer.add_eos and tokenizer.eos_id is not None
    if has_end:
        return [*ids[: n_ctx - 1], ids[-1]]
    return ids[:n_ctx]


def _shorten(vector: np.ndarray[Any, Any], length: int | None) -> np.ndarray[Any, Any]:
    """Return the first elements of a vector, scaled to unit length.

    Models that are trained for this put the most meaning into them.
    """
    if length is None or length == len(vector):
        return vector
    norm = float(np.linalg.norm(vector[:length]))
    if norm:
        return vector[:length] / norm
    return vector[:length]


def _compute(path: str, compute: Callable[[list[int]], Any], ids: list[int]) -> Any:
    """Call a function of the model, and convert its errors about the text."""
    try:
        return compute(ids)
    except EngineError as error:
        if type(error) not in (EngineError, ContextFullError):
            raise
        if isinstance(error, ContextFullError):
            code = "context_length_exceeded"
        else:
            code = "invalid_value"
        raise ApiError(f"{path}: {error}", param=path, code=code) from None


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}

"""Vectors of texts: a text's tokens in all layers, pooled to one vector, or to how well a document answers a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.batch import SHORT_BLOCK
from engine.errors import BrokenModelError, Cancelled, ContextFullError, EngineError
from engine.models.reading import MEAN, RANK
from engine.tokenizer.pauses import pause

if TYPE_CHECKING:
    from engine.pipeline import Pipeline
    from engine.tokenizer import Tokenizer

Vector = np.ndarray[Any, np.dtype[np.float32]]


class Embedder:
    """Computes vectors with the model's threads. Made by ``Model.embedder``; one thread at a time may use it.

    Args:
        pipeline: made to leave vectors.
        shown_name: of the file, for messages.
        n_threads: called for the threads of a walk.
        turn: called for what has the model's threads meanwhile.

    Attributes:
        n_ctx: limit on a text in tokens; an encoder's text is one block.
        dim: of a vector.
        pooling: what the file asks for, a name of ``POOLINGS``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        n_ctx: int,
        shown_name: str,
        n_threads: Callable[[], int],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._pipeline, self._shown_name, self._n_threads, self._turn = pipeline, shown_name, n_threads, turn
        config = pipeline.config
        self.n_ctx = min(n_ctx, pipeline.columns) if config.is_encoder else n_ctx
        self.pooling = config.pooling or MEAN
        self.dim = (config.dim, *config.dense_widths)[-1]

    def embed(self, ids: Sequence[int], pooling: str = "") -> Vector:
        """Return a text's vector, (dim,) float32 of unit length.

        Args:
            ids: as the tokenizer encodes a text.
            pooling: ``"mean"``, ``"cls"`` or ``"last"`` in place of what the file asks for.

        Raises:
            EngineError: no ids, an id is out of range, or the model judges documents and was asked for no pooling.
            ContextFullError: more tokens than ``n_ctx``.
            BrokenModelError: the model computed NaN or infinity.
        """
        if (pooling or self.pooling) == RANK:
            raise EngineError(f"{self._shown_name}: judges documents and makes no vectors (jalopy serve, /v1/rerank)")
        found = self._pooled(ids, pooling or self.pooling)
        for name in ("dense_2.weight", "dense_3.weight")[: len(self._pipeline.config.dense_widths)]:
            found = self._product(name, found)
        length = float(np.sqrt((found.astype(np.float64) ** 2).sum()))
        return (found / length if length else found).astype(np.float32)

    def rank(self, ids: Sequence[int]) -> float:
        """Return how well the document answers the query in ``ids``, as llama.cpp scores it: more is better.

        Raises:
            EngineError: as ``embed``; or the model does not judge documents.
        """
        config, tensors = self._pipeline.config, self._pipeline.tensors
        if self.pooling != RANK or "cls.output.weight" not in tensors:
            raise EngineError(f"{self._shown_name}: does not judge documents (use a reranker)")
        found = self._pooled(ids, "cls" if config.is_encoder else "last")
        if "cls.weight" in tensors:
            found = np.tanh(self._product("cls.weight", found))
        found = self._product("cls.output.weight", found)
        if not config.is_encoder and len(found) > 1:  # yes and no, of which the first counts (llama.cpp)
            found = np.exp(found - found.max())
            found /= found.sum()
        return float(found[0])

    def _pooled(self, ids: Sequence[int], pooling: str) -> Vector:
        config, pipeline, checked = self._pipeline.config, self._pipeline, [int(one) for one in ids]
        if not checked:
            raise EngineError("no tokens to embed")
        if min(checked) < 0 or max(checked) >= config.vocab_size:
            raise EngineError(f"token ids must be 0 to {config.vocab_size - 1}")
        if len(checked) > self.n_ctx:
            raise ContextFullError(
                f"a text of {len(checked):,} tokens is too long: at most {self.n_ctx:,} (shorten it)"
            )
        columns = self.n_ctx if config.is_encoder else min(pipeline.columns, SHORT_BLOCK)
        total, last = np.zeros(config.dim, np.float64), np.zeros(0)
        pipeline.memory.rewind(0)
        for pos in range(0, len(checked), columns):
            pause()
            block = checked[pos : pos + columns]
            pipeline.memory.extend(pos + len(block))
            with self._turn():
                rows = pipeline.vectors(block, pos, self._n_threads())
                if rows is None:
                    raise Cancelled("stopped")
                total, last = total + rows.sum(axis=0, dtype=np.float64), rows[-1].astype(np.float64)
                if pooling == "cls":
                    return self._finite(rows[0].astype(np.float64))
            pipeline.memory.reach(pos + len(block))
        return self._finite(total / len(checked) if pooling == MEAN else last)

    def _product(self, name: str, x: Vector) -> Vector:
        with self._turn():
            found = self._pipeline.product(name, x, self._n_threads())
            if found is None:
                raise Cancelled("stopped")
            return self._finite(found.astype(np.float64))

    def _finite(self, found: np.ndarray[Any, np.dtype[np.float64]]) -> Vector:
        if not np.isfinite(found).all():
            raise BrokenModelError(
                f"{self._shown_name}: the model computed NaN or infinity: its weights are damaged (download it again)"
            )
        return found.astype(np.float32)


def pair_ids(tokenizer: Tokenizer, metadata: Mapping[str, Any], query: str, document: str) -> list[int]:
    """Return the tokens of a query and a document, as a model that judges documents reads them.

    In the form of the file's template for it, if it has one; else both as texts that follow each other. Control tokens
    that are spelled in either stay text.
    """
    template = metadata.get("tokenizer.chat_template.rerank")
    if not isinstance(template, str):
        ids = tokenizer.encode(query, special=False)
        parts = metadata.get("tokenizer.ggml.add_sep_token") is True and metadata.get("tokenizer.ggml.model") != "bert"
        more = tokenizer.encode(document, bos=None, special=False)
        begins = tokenizer.add_bos and tokenizer.bos_id is not None
        return ids + ([tokenizer.eos_id] if parts and tokenizer.eos_id is not None else []) + more[1 if begins else 0 :]
    found: list[int] = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    texts, after_special = {"{query}": query, "{document}": document}, True
    for fragment in tokenizer.split(template, special=True):
        if fragment.token_id is None:
            text = re.sub(r"\{query\}|\{document\}", lambda place: texts[place[0]], fragment.text)
            found += tokenizer.encode_text(text, after_special)
        else:
            found.append(fragment.token_id)
        after_special = fragment.token_id is not None
    return found

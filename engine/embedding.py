"""Embeddings: a text's tokens in all layers, pooled to one vector, or to a score of how well a
document answers a query."""

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
    from engine.cache.layer_memory import MemoryNeeds
    from engine.pipeline import Pipeline
    from engine.tokenizer import Tokenizer

Vector = np.ndarray[Any, np.dtype[np.float32]]

RERANK_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Prompt of Qwen3-Reranker, from its model card. Newer files include it."""
RERANK_ANSWERS = "yes", "no"


class Embedder:
    """Computes vectors with the model's threads. Made by ``Model.embedder``; one thread at a time
    may use it.

    Args:
        pipeline: pipeline for embeddings.
        n_ctx: limit on the tokens of a text; an encoder takes a text as one block.
        needs: memory by the tokens of a text.
        shown_name: name of the file, for messages.
        answer_ids: result of ``answer_ids_of``.
        n_threads: returns the number of threads of a run.
        use_threads: returns a context manager that holds the model's threads.

    Attributes:
        n_ctx: limit on the tokens of a text.
        dim: width of a vector.
        pooling: the file's kind of pooling, a name of ``POOLINGS``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        n_ctx: int,
        needs: MemoryNeeds,
        shown_name: str,
        answer_ids: tuple[int, int] | None,
        n_threads: Callable[[], int],
        use_threads: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._pipeline = pipeline
        self._shown_name = shown_name
        self._n_threads = n_threads
        self._use_threads = use_threads
        self._needs = needs
        self._answer_ids = answer_ids
        self._longest_text = 0
        """Number of tokens of the longest text so far."""
        self.n_ctx = n_ctx
        config = pipeline.config
        self.pooling = config.pooling or MEAN
        if answer_ids is not None:
            self.pooling = RANK
        self.dim = (config.dim, *config.dense_widths)[-1]

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of memory that no text has used yet, which the system counts as available."""
        return self._needs.bytes_for(self.n_ctx) - self._needs.bytes_for(self._longest_text)

    def embed(self, ids: Sequence[int], pooling: str = "") -> Vector:
        """Return a text's vector, (dim,) float32 of unit length.

        Args:
            ids: token ids of the text.
            pooling: ``"mean"``, ``"cls"`` or ``"last"``; empty for the file's pooling.

        Raises:
            EngineError: no ids, an id is out of range, or the model judges documents and no pooling
                is given.
            ContextFullError: more tokens than ``n_ctx``.
            BrokenModelError: the model computed NaN or infinity.
        """
        pooling = pooling or self.pooling
        if pooling == RANK:
            raise EngineError(
                f"{self._shown_name}: judges documents and makes no vectors (jalopy serve, "
                f"/v1/rerank)"
            )
        vector = self._pooled(ids, pooling)
        for name in ("dense_2.weight", "dense_3.weight")[: len(self._pipeline.config.dense_widths)]:
            vector = self._product(name, vector)
        length = float(np.sqrt((vector.astype(np.float64) ** 2).sum()))
        if length:
            vector = vector / length
        return vector.astype(np.float32)

    def rank(self, ids: Sequence[int]) -> float:
        """Return how well the document in ``ids`` answers the query, with llama.cpp's score; more
        is better.

        Args:
            ids: result of ``pair_ids``.

        Raises:
            EngineError: the errors of ``embed``; or the model does not judge documents.
        """
        config = self._pipeline.config
        tensors = self._pipeline.tensors
        if self.pooling != RANK:
            raise EngineError(f"{self._shown_name}: does not judge documents (use a reranker)")
        if "cls.output.weight" not in tensors and self._answer_ids is None:
            raise EngineError(
                f"{self._shown_name}: lacks cls.output.weight, which judges documents (get a newer "
                f"file of this model)"
            )

        pooling = "cls" if config.is_encoder else "last"
        vector = self._pooled(ids, pooling)
        if "cls.output.weight" not in tensors:
            assert self._answer_ids is not None
            head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
            logits = self._product(head, vector)
            return float(_softmax(logits[list(self._answer_ids)])[0])

        if "cls.weight" in tensors:
            vector = np.tanh(self._product("cls.weight", vector))
        scores = self._product("cls.output.weight", vector)
        if not config.is_encoder and len(scores) > 1:  # logits of yes and no, as in llama.cpp
            scores = _softmax(scores)
        return float(scores[0])

    def _pooled(self, ids: Sequence[int], pooling: str) -> Vector:
        pipeline = self._pipeline
        checked = self._checked(ids)
        self._longest_text = max(self._longest_text, len(checked))
        size = self.n_ctx
        if not pipeline.config.is_encoder:
            size = min(pipeline.max_block_tokens, SHORT_BLOCK)

        total = np.zeros(pipeline.config.dim, np.float64)
        last = np.zeros(0)
        pipeline.memory.rewind(0)
        for pos in range(0, len(checked), size):
            pause()
            block = checked[pos : pos + size]
            pipeline.memory.reserve(pos + len(block))
            with self._use_threads():
                rows = pipeline.vectors(block, pos, self._n_threads())
                if rows is None:
                    raise Cancelled("stopped")
                total = total + rows.sum(axis=0, dtype=np.float64)
                last = rows[-1].astype(np.float64)
                if pooling == "cls":
                    return self._finite(rows[0].astype(np.float64))
            pipeline.memory.commit(pos + len(block))
        if pooling == MEAN:
            return self._finite(total / len(checked))
        return self._finite(last)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        vocab_size = self._pipeline.config.vocab_size
        checked = [int(token) for token in ids]
        if not checked:
            raise EngineError("no tokens to embed")
        if min(checked) < 0 or max(checked) >= vocab_size:
            raise EngineError(f"token ids must be 0 to {vocab_size - 1}")
        if len(checked) > self.n_ctx:
            raise ContextFullError(
                f"a text of {len(checked):,} tokens is too long: at most {self.n_ctx:,} (shorten "
                f"it)"
            )
        return checked

    def _product(self, name: str, x: Vector) -> Vector:
        with self._use_threads():
            result = self._pipeline.multiply(name, x, self._n_threads())
            if result is None:
                raise Cancelled("stopped")
            return self._finite(result.astype(np.float64))

    def _finite(self, vector: np.ndarray[Any, np.dtype[np.float64]]) -> Vector:
        if not np.isfinite(vector).all():
            raise BrokenModelError(
                f"{self._shown_name}: the model computed NaN or infinity: its weights are damaged "
                f"(download it again)"
            )
        return vector.astype(np.float32)


def _softmax(logits: Vector) -> Vector:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()  # type: ignore[no-any-return]


def answer_ids_of(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], pooling: str
) -> tuple[int, int] | None:
    """Return the ids of "yes" and "no" for Qwen3-Reranker; None for any other model.

    Files from before llama.cpp's converter knew the model have its whole output head; only their
    name shows that they judge documents.
    """
    names = [metadata.get(key) for key in ("general.name", "general.basename")]
    is_named_reranker = any(isinstance(name, str) and "rerank" in name.lower() for name in names)
    if pooling != RANK and not is_named_reranker:
        return None

    fragments = tokenizer.split(RERANK_TEMPLATE, special=True)
    texts = [fragment.text for fragment in fragments if fragment.token_id is None]
    if any("<|" in text or "<think>" in text for text in texts):  # the vocabulary lacks the tokens
        return None
    yes_ids, no_ids = (tokenizer.encode(text, bos=False, special=False) for text in RERANK_ANSWERS)
    if len(yes_ids) != 1 or len(no_ids) != 1:
        return None
    return yes_ids[0], no_ids[0]


def pair_ids(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], query: str, document: str, pooling: str
) -> list[int]:
    """Return the tokens of a query and a document for a model that judges documents.

    They follow the file's template for reranking, or follow each other if it has none. Control
    tokens that are spelled out in either stay text.
    """
    template = metadata.get("tokenizer.chat_template.rerank")
    if template is None and answer_ids_of(tokenizer, metadata, pooling) is not None:
        template = RERANK_TEMPLATE
    if isinstance(template, str):
        return _templated_ids(tokenizer, template, query, document)

    ids = tokenizer.encode(query, special=False)
    has_separator = (
        metadata.get("tokenizer.ggml.add_sep_token") is True
        and metadata.get("tokenizer.ggml.model") != "bert"
    )
    if has_separator and tokenizer.eos_id is not None:
        ids.append(tokenizer.eos_id)
    document_ids = tokenizer.encode(document, bos=None, special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        del document_ids[0]
    return ids + document_ids


def _templated_ids(tokenizer: Tokenizer, template: str, query: str, document: str) -> list[int]:
    ids: list[int] = []
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        ids.append(tokenizer.bos_id)
    texts = {"{query}": query, "{document}": document}
    after_special = True
    for fragment in tokenizer.split(template, special=True):
        if fragment.token_id is None:
            text = re.sub(r"\{query\}|\{document\}", lambda match: texts[match[0]], fragment.text)
            ids += tokenizer.encode_text(text, after_special)
        else:
            ids.append(fragment.token_id)
        after_special = fragment.token_id is not None
    return ids

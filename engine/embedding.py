"""Vectors of texts: a text's tokens in all layers, pooled to one vector, or to how well a document
answers a query."""

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

JUDGING_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""What Qwen3-Reranker reads, of its model card; newer files have it themselves."""
JUDGING_ANSWERS = "yes", "no"


class Embedder:
    """Computes vectors with the model's threads. Made by ``Model.embedder``; one thread at a time
    may use it.

    Args:
        pipeline: made to leave vectors.
        n_ctx: limit on a text in tokens; an encoder's text is one block.
        needs: memory by the tokens of a text.
        shown_name: of the file, for messages.
        answers: as of ``answers_of``.
        n_threads: called for the threads of a walk.
        turn: called for what has the model's threads meanwhile.

    Attributes:
        n_ctx: the same.
        dim: of a vector.
        pooling: what the file asks for, a name of ``POOLINGS``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        n_ctx: int,
        needs: MemoryNeeds,
        shown_name: str,
        answers: tuple[int, int] | None,
        n_threads: Callable[[], int],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._pipeline = pipeline
        self._shown_name = shown_name
        self._n_threads = n_threads
        self._turn = turn
        config = pipeline.config
        self._needs = needs
        self._answers = answers
        self.n_ctx = n_ctx
        self._n_written = 0
        """Tokens of the longest text so far."""
        if answers is None:
            self.pooling = config.pooling or MEAN
        else:
            self.pooling = RANK
        self.dim = (config.dim, *config.dense_widths)[-1]

    @property
    def unwritten_bytes(self) -> int:
        """Memory that no text was long enough for by now; the system counts it as available."""
        return self._needs.bytes_for(self.n_ctx) - self._needs.bytes_for(self._n_written)

    def embed(self, ids: Sequence[int], pooling: str = "") -> Vector:
        """Return a text's vector, (dim,) float32 of unit length.

        Args:
            ids: as the tokenizer encodes a text.
            pooling: ``"mean"``, ``"cls"`` or ``"last"`` in place of what the file asks for.

        Raises:
            EngineError: no ids, an id is out of range, or the model judges documents and was asked
                for no pooling.
            ContextFullError: more tokens than ``n_ctx``.
            BrokenModelError: the model computed NaN or infinity.
        """
        if (pooling or self.pooling) == RANK:
            raise EngineError(
                f"{self._shown_name}: judges documents and makes no vectors (jalopy serve, /v1/rerank)"
            )
        found = self._pooled(ids, pooling or self.pooling)
        for name in ("dense_2.weight", "dense_3.weight")[: len(self._pipeline.config.dense_widths)]:
            found = self._product(name, found)
        length = float(np.sqrt((found.astype(np.float64) ** 2).sum()))
        return (found / length if length else found).astype(np.float32)

    def rank(self, ids: Sequence[int]) -> float:
        """Return how well the document answers the query in ``ids``, as llama.cpp scores it: more
        is better.

        Raises:
            EngineError: as ``embed``; or the model does not judge documents.
        """
        config = self._pipeline.config
        tensors = self._pipeline.tensors
        if self.pooling != RANK:
            raise EngineError(f"{self._shown_name}: does not judge documents (use a reranker)")
        if "cls.output.weight" not in tensors and self._answers is None:
            raise EngineError(
                f"{self._shown_name}: lacks cls.output.weight, which judges documents (get a newer file of this model)"
            )
        found = self._pooled(ids, "cls" if config.is_encoder else "last")
        if "cls.output.weight" not in tensors:
            assert self._answers is not None
            found = self._product(
                "output.weight" if "output.weight" in tensors else "token_embd.weight", found
            )
            return float(_shares(found[list(self._answers)])[0])
        if "cls.weight" in tensors:
            found = np.tanh(self._product("cls.weight", found))
        found = self._product("cls.output.weight", found)
        if (
            not config.is_encoder and len(found) > 1
        ):  # yes and no, of which the first counts (llama.cpp)
            found = _shares(found)
        return float(found[0])

    def _pooled(self, ids: Sequence[int], pooling: str) -> Vector:
        config = self._pipeline.config
        pipeline = self._pipeline
        checked = [int(one) for one in ids]
        if not checked:
            raise EngineError("no tokens to embed")
        if min(checked) < 0 or max(checked) >= config.vocab_size:
            raise EngineError(f"token ids must be 0 to {config.vocab_size - 1}")
        if len(checked) > self.n_ctx:
            raise ContextFullError(
                f"a text of {len(checked):,} tokens is too long: at most {self.n_ctx:,} (shorten it)"
            )
        self._n_written = max(self._n_written, len(checked))
        if config.is_encoder:
            columns = self.n_ctx
        else:
            columns = min(pipeline.block_size, SHORT_BLOCK)
        total = np.zeros(config.dim, np.float64)
        last = np.zeros(0)
        pipeline.memory.rewind(0)
        for pos in range(0, len(checked), columns):
            pause()
            block = checked[pos : pos + columns]
            pipeline.memory.reserve(pos + len(block))
            with self._turn():
                rows = pipeline.vectors(block, pos, self._n_threads())
                if rows is None:
                    raise Cancelled("stopped")
                total = total + rows.sum(axis=0, dtype=np.float64)
                last = rows[-1].astype(np.float64)
                if pooling == "cls":
                    return self._finite(rows[0].astype(np.float64))
            pipeline.memory.commit(pos + len(block))
        return self._finite(total / len(checked) if pooling == MEAN else last)

    def _product(self, name: str, x: Vector) -> Vector:
        with self._turn():
            found = self._pipeline.multiply(name, x, self._n_threads())
            if found is None:
                raise Cancelled("stopped")
            return self._finite(found.astype(np.float64))

    def _finite(self, found: np.ndarray[Any, np.dtype[np.float64]]) -> Vector:
        if not np.isfinite(found).all():
            raise BrokenModelError(
                f"{self._shown_name}: the model computed NaN or infinity: its weights are damaged (download it again)"
            )
        return found.astype(np.float32)


def _shares(found: Vector) -> Vector:
    """Return the softmax."""
    raised = np.exp(found - found.max())
    return raised / raised.sum()  # type: ignore[no-any-return]


def answers_of(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], pooling: str
) -> tuple[int, int] | None:
    """Return the tokens of a yes and a no, of which Qwen3-Reranker says how likely each is; None
    for another model.

    Files from before llama.cpp's converter knew it have the whole head, and only their name says
    what they are for.
    """
    names = [metadata.get(key) for key in ("general.name", "general.basename")]
    judges = pooling == RANK or any(
        isinstance(one, str) and "rerank" in one.lower() for one in names
    )
    answers = [tokenizer.encode(one, bos=False, special=False) for one in JUDGING_ANSWERS if judges]
    spelled = [
        one.text for one in tokenizer.split(JUDGING_TEMPLATE, special=True) if one.token_id is None
    ]
    knows_form = not any("<|" in text or "<think>" in text for text in spelled)
    if not judges or not knows_form or any(len(ids) != 1 for ids in answers):
        return None
    return answers[0][0], answers[1][0]


def pair_ids(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], query: str, document: str, pooling: str
) -> list[int]:
    """Return the tokens of a query and a document, as a model that judges documents reads them.

    In the form of the file's template for it, if it has one; else both as texts that follow each
    other. Control tokens that are spelled in either stay text.
    """
    template = metadata.get("tokenizer.chat_template.rerank")
    if template is None and answers_of(tokenizer, metadata, pooling) is not None:
        template = JUDGING_TEMPLATE
    if not isinstance(template, str):
        ids = tokenizer.encode(query, special=False)
        parts = (
            metadata.get("tokenizer.ggml.add_sep_token") is True
            and metadata.get("tokenizer.ggml.model") != "bert"
        )
        more = tokenizer.encode(document, bos=None, special=False)
        begins = tokenizer.add_bos and tokenizer.bos_id is not None
        return (
            ids
            + ([tokenizer.eos_id] if parts and tokenizer.eos_id is not None else [])
            + more[1 if begins else 0 :]
        )
    found: list[int] = (
        [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    )
    texts = {"{query}": query, "{document}": document}
    after_special = True
    for fragment in tokenizer.split(template, special=True):
        if fragment.token_id is None:
            text = re.sub(r"\{query\}|\{document\}", lambda place: texts[place[0]], fragment.text)
            found += tokenizer.encode_text(text, after_special)
        else:
            found.append(fragment.token_id)
        after_special = fragment.token_id is not None
    return found

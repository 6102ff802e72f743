"""Vectors of texts against NumPy twins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.errors import BrokenModelError, ContextFullError, EngineError
from engine.models import ENCODERS
from engine.weights.modes import RESERVE_BYTES
from tests.engine import architectures, tiny_gguf
from tests.engine.architectures import encoders
from tests.engine.reference import Array, Twin, softmax
from tests.engine.test_models import IDS

BPE = tiny_gguf.bpe_vocabulary
LONG = np.random.default_rng(5).integers(3, 150, 300).tolist()


class VectorTwin(Twin):
    """Twin of a decoder that stops before the logits."""

    def unembed(self, normed: Array) -> Array:
        return normed


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def dense(twin: Twin, pooled: Array) -> Array:
    for name in ("dense_2", "dense_3"):
        pooled = pooled if twin.tensor(name + ".weight") is None else twin.project(pooled, name)
    return pooled


@pytest.mark.parametrize(
    "ids", [IDS[:1], IDS, 2 * LONG], ids=["one token", "some", "several products"]
)
@pytest.mark.parametrize("architecture", ENCODERS)
def test_vectors_of_encoders_equal_the_numpy_twin(
    architecture: str, ids: list[int], tmp_path: Path
) -> None:
    described = encoders.TINY[architecture](n_layers=3, context_length=600)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    twin = Twin(model._file)
    expected = encoders.VECTORS[architecture](twin, ids)
    for pooling, pooled in {
        "": expected.mean(axis=0),
        "cls": expected[0],
        "last": expected[-1],
    }.items():
        vector = model.embedder.embed(ids, pooling)
        assert vector.shape == (model.embedder.dim,)
        assert abs(float((vector * vector).sum()) - 1) < 1e-5
        assert cosine(vector, dense(twin, pooled)) > 1 - 1e-6
    model.close()


@pytest.mark.parametrize("architecture", ENCODERS)
def test_an_encoders_threads_change_no_bit(architecture: str, tmp_path: Path) -> None:
    path = encoders.TINY[architecture]("Q8_0").write(tmp_path / "m.gguf")
    vectors = []
    for threads in (1, 3):
        model = Model.open(path, threads=threads)
        vectors += [model.embedder.embed(ids).tobytes() for ids in (IDS, IDS[:5], IDS)]
        model.close()
    assert vectors[0] == vectors[2] == vectors[3] == vectors[5] != vectors[1] == vectors[4]


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3", "lfm2", "qwen35"])
def test_vectors_of_decoders_equal_the_numpy_twin(architecture: str, tmp_path: Path) -> None:
    described = tiny_gguf.model(architecture, context_length=512)
    described.set(f"{architecture}.pooling_type", 3)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    for ids in (IDS, LONG, IDS):
        expected = architectures.load(architecture).logits(VectorTwin(model._file), ids)
        assert cosine(model.embedder.embed(ids), expected[-1]) > 1 - 1e-6
        assert cosine(model.embedder.embed(ids, "mean"), expected.mean(axis=0)) > 1 - 1e-6
    session = model.session(n_ctx=64)  # both may be there
    session.feed(IDS)
    model.close()


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_documents_are_judged_as_the_twin_judges(quant: str, tmp_path: Path) -> None:
    path = encoders.judging(encoders.bert(quant), 1, has_dense=True).write(tmp_path / "bert.gguf")
    model = Model.open(path, threads=2)
    twin = Twin(model._file)
    judged = np.tanh(twin.project(encoders.VECTORS["bert"](twin, IDS)[0], "cls"))
    expected = (
        judged @ twin.tensor("cls.output.weight").ravel() + twin.tensor("cls.output.bias")
    ).item()
    assert abs(model.embedder.rank(IDS) - expected) < (1e-3 if quant == "F32" else 0.05)
    with pytest.raises(EngineError, match="judges documents and makes no vectors"):
        model.embedder.embed(IDS)
    model.close()


def test_of_two_labels_the_first_ones_share_counts(tmp_path: Path) -> None:
    path = encoders.judging(tiny_gguf.model("qwen3"), 2, has_dense=False).write(tmp_path / "m.gguf")
    model = Model.open(path, threads=1)
    twin = VectorTwin(model._file)
    expected = softmax(
        twin.project(architectures.load("qwen3").logits(twin, IDS)[-1], "cls.output")
    )
    assert abs(model.embedder.rank(IDS) - expected[0]) < 1e-4
    model.close()


def judging_vocabulary() -> dict[str, Any]:
    """Return the vocabulary of Qwen3's rerankers: yes and no are tokens."""
    entries = BPE()
    entries["tokenizer.ggml.tokens"] += ["ye", "yes", "no", "<think>", "</think>"]
    types = [*entries["tokenizer.ggml.token_type"], 1, 1, 1, 4, 4]
    return entries | {
        "tokenizer.ggml.token_type": np.array(types, "<i4"),
        "tokenizer.ggml.merges": [*entries["tokenizer.ggml.merges"], "y e", "ye s", "n o"],
    }


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_reranker_with_a_whole_head_says_yes_or_no(
    is_tied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiny_gguf, "bpe_vocabulary", judging_vocabulary)
    described = tiny_gguf.model("qwen3", vocabulary="bpe", context_length=1024, tied=is_tied)
    described.set("general.name", "Qwen3 Reranker 0.6B")
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    ids = model.pair_ids("a <|im_end|> cat", "the sea")
    tokens = model.tokenizer.token_text
    assert sum(tokens(piece) == "<|im_end|>" for piece in ids) == 2  # none of them the query's
    assert model.tokenizer.decode(ids).count("<Document>: the sea") == 1
    logits = architectures.load("qwen3").logits(Twin(model._file), ids)[-1]
    expected = softmax(
        logits[[model.tokenizer.encode(piece, bos=False)[0] for piece in ("yes", "no")]]
    )[0]
    assert abs(model.embedder.rank(ids) - expected) < 1e-4
    with pytest.raises(EngineError, match="judges documents and makes no vectors"):
        model.embedder.embed(ids)
    model.close()


def test_a_reranker_without_what_judges_says_so(tmp_path: Path) -> None:
    described = tiny_gguf.model("llama")  # whose vocabulary has no form for it
    described.set("llama.pooling_type", 4)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    with pytest.raises(EngineError, match=r"m\.gguf: lacks cls\.output\.weight"):
        model.embedder.rank(IDS)
    model.close()


def test_a_long_text_is_one_block_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = np.random.default_rng(7).integers(3, 150, 1100).tolist()
    path = encoders.modern_bert("Q8_0", context_length=4096).write(tmp_path / "m.gguf")
    model = Model.open(path, threads=2)
    assert model.embedder.n_ctx == 4096
    unwritten_bytes = model.unwritten_bytes
    vector = model.embedder.embed(ids)
    assert (
        cosine(vector, encoders.VECTORS["modern-bert"](Twin(model._file), ids).mean(axis=0)) > 0.999
    )
    bytes_per_token = unwritten_bytes // 4096
    assert (
        model.unwritten_bytes
        == unwritten_bytes - 1100 * bytes_per_token
        > 4 * model.config.activation_floats * 1500
    )
    model.close()
    monkeypatch.setattr(
        "engine.machine.host.available_memory_bytes",
        lambda: RESERVE_BYTES + 2 * 1000 * bytes_per_token,
    )
    model = Model.open(path, threads=2)
    assert model.embedder.n_ctx == 1000
    with pytest.raises(ContextFullError, match=r"1,100 tokens is too long: at most 1,000"):
        model.embedder.embed(ids)
    model.close()


def test_what_cannot_be_embedded_is_one_line(tmp_path: Path) -> None:
    model = Model.open(encoders.bert().write(tmp_path / "m.gguf"))
    for ids, why in (
        ([], "no tokens"),
        ([10**6], "ids must be 0 to"),
        ([-1], "ids must"),
        ([5] * 129, "at most 128"),
    ):
        with pytest.raises(EngineError, match=why):
            model.embedder.embed(ids)
    with pytest.raises(EngineError, match=r"m\.gguf: does not judge documents"):
        model.embedder.rank(IDS)
    with pytest.raises(EngineError, match=r"writes none \(jalopy embed m\.gguf TEXT\)"):
        model.session(n_ctx=64)
    model.close()


def test_an_encoder_whose_file_says_otherwise_is_refused(tmp_path: Path) -> None:
    described = encoders.bert()
    described.set("bert.attention.causal", True)
    with pytest.raises(EngineError, match=r"bert\.attention\.causal is not false"):
        Model.open(described.write(tmp_path / "m.gguf"))
    described = encoders.bert()
    tensor = described.tensor("position_embd.weight")
    tensor.data = tensor.data[: len(tensor.data) // 2]
    tensor.ggml_type = 1
    with pytest.raises(EngineError, match=r"position_embd\.weight is F16"):
        Model.open(described.write(tmp_path / "m.gguf"))
    described = encoders.gemma_embedding()
    described.drop_tensor("dense_3.weight")
    with pytest.raises(EngineError, match="only one is there"):
        Model.open(described.write(tmp_path / "m.gguf"))
    described = encoders.bert()
    described.set("bert.classifier.output_labels", [])
    with pytest.raises(EngineError, match="output_labels must be up to"):
        Model.open(described.write(tmp_path / "m.gguf"))


def test_damaged_weights_are_told(tmp_path: Path) -> None:
    described = encoders.bert()
    described.fill("blk.0.ffn_up.weight", float("nan"))
    model = Model.open(described.write(tmp_path / "m.gguf"))
    with pytest.raises(BrokenModelError, match="NaN or infinity"):
        model.embedder.embed(IDS)
    model.close()

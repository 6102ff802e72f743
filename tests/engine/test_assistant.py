"""Guesses of Gemma 4's assistant, a small model in a file of its own, against a NumPy twin."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, Sampling, Session, predictor
from engine.assistant import Assistant, assistant_next_to
from engine.sampling.guessing import Guessing
from engine.saved_state import StateWriter, restore_state
from tests.engine import tiny_gguf
from tests.engine.architectures import test_gemma4
from tests.engine.predicting import ASSISTANT, SLIDES, HiddenTwin, assistant_of, assisted_model
from tests.engine.reference import Array, Twin, gelu, rope, softmax
from tests.engine.test_models import IDS, nmse
from tests.programs.engine.predictions import ASSISTED, ASSISTED_BOUND, GOLDEN, our_logits

pytestmark = pytest.mark.slow

N_CTX = 128
LONG = [3 + 7 * n % 240 for n in range(60)]


def opened(folder: Path, **arguments: Any) -> Model:
    """Open a tiny model with its assistant."""
    model = assisted_model(**arguments)
    assistant = assistant_of(model).write(folder / "assistant.gguf")
    return Model.open(model.write(folder / "m.gguf"), threads=2, assistant=assistant)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    """Tiny model with an assistant."""
    model = opened(tmp_path)
    yield model
    model.close()


def chain(session: Session, token: int) -> tuple[Array, list[int]]:
    """Return the logits of three guesses in a row after a token, and the guesses."""
    following = [token]
    rows = []
    for _ in range(3):
        row = session.pipeline.draft(following, session.tokens, 2)
        assert row is not None
        rows.append(row.copy())
        following.append(int(row.argmax()))
    return np.stack(rows), following[1:]


def twin_chain(model: Model, ids: list[int], following: list[int]) -> Array:
    """Return the assistant's logits for tokens after ids, all at the position of the first."""
    stored: dict[int, tuple[Array, Array]] = {}
    hidden = test_gemma4.logits(HiddenTwin(model._file), ids, stored)[-1]
    embedding = Twin(model._file).tensor("token_embd.weight")
    assert embedding is not None
    assistant = model.assistant.assistant
    assert assistant is not None
    rows = []
    for token in following:
        scaled = embedding[token] * np.sqrt(len(hidden))
        normed = _layers(Twin(assistant), np.concatenate([scaled, hidden]), stored, len(ids))
        rows.append(Twin(assistant).project(normed, "token_embd"))
        hidden = Twin(assistant).project(normed, "nextn.post_projection")
    return np.stack(rows)


def _layers(twin: Twin, pair: Array, stored: dict[int, tuple[Array, Array]], pos: int) -> Array:
    """Return the row of one token after the assistant's last norm."""
    x = twin.project(pair, "nextn.pre_projection")
    for number, slides in enumerate(SLIDES):
        block = f"blk.{number}."
        keys, values = stored[2 if slides else 3]
        width = keys.shape[-1]
        theta = twin.key("rope.freq_base_swa" if slides else "rope.freq_base")
        frequencies = theta ** (-np.arange(0, width, 2) / width)
        if not slides:
            frequencies = frequencies / twin.tensor("rope_freqs.weight")
        q = twin.project(twin.norm(x, block + "attn_norm"), block + "attn_q").reshape(1, -1, width)
        q = twin.norm(q, block + "attn_q_norm")
        q = rope(q, np.array([pos]), frequencies, neighbours=False)[0]
        first = max(0, pos - twin.key("attention.sliding_window") + 1) if slides else 0
        group = len(q) // keys.shape[1]
        k, v = (np.repeat(part[first:], group, axis=1) for part in (keys, values))
        weights = softmax(np.einsum("hd,nhd->hn", q, k))
        attended = np.einsum("hn,nhd->hd", weights, v).ravel()
        attended = twin.project(attended, block + "attn_output")
        x = x + twin.norm(attended, block + "post_attention_norm")
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
        x = x * twin.tensor(block + "layer_output_scale.weight")
    return twin.norm(x, "output_norm")


@pytest.mark.parametrize("per_layer", [True, False])
def test_guesses_in_a_row_equal_the_numpy_twin(per_layer: bool, tmp_path: Path) -> None:
    model = opened(tmp_path, per_layer=per_layer)
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.prefill(IDS[:9])
    for position in range(9, len(IDS)):
        assert session.guess_limits.can_draft
        rows, guesses = chain(session, IDS[position])
        expected = twin_chain(model, IDS[:position], [IDS[position], *guesses[:2]])
        assert nmse(rows, expected) < 1e-9
        assert session.draft(IDS[position], 3) == guesses
        session.feed(IDS[position : position + 1])
    model.close()


def test_guesses_do_not_depend_on_how_tokens_were_computed(model: Model) -> None:
    expected = twin_chain(model, IDS[:12], IDS[12:13])
    session = model.session(n_ctx=N_CTX, kv="f32")
    first = model.session(n_ctx=N_CTX, kv="f32")
    first.feed(IDS[:12])
    session.feed(IDS[:5])
    session.feed(IDS[5:8])
    session.verify([*IDS[8:10], 7])
    session.truncate(10)
    session.verify(IDS[10:12])
    for each in (first, session):
        assert nmse(chain(each, IDS[12])[0][:1], expected) < 1e-9


def test_guesses_follow_tokens_of_several_sessions(model: Model) -> None:
    first = model.session(n_ctx=N_CTX, kv="f32")
    sessions = [first, model.session(peer=first)]
    texts = [IDS, IDS[::-1]]
    barrier = threading.Barrier(2)

    def write(session: Session, ids: list[int]) -> None:
        assert session.batch is not None
        session.feed(ids[:5])
        barrier.wait(60)
        with session.batch.writing(session.pipeline):
            barrier.wait(60)
            for token in ids[5:9]:
                session.feed([token])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, sessions, texts))
    for session, ids in zip(sessions, texts, strict=True):
        expected = twin_chain(model, ids[:9], ids[9:10])
        assert nmse(chain(session, ids[9])[0][:1], expected) < 1e-9


def test_some_rows_of_the_head_suffice(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "DRAFT_ROWS", 64)
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.prefill(IDS[:9])
    guesses = session.draft(IDS[9], 1)
    memory = session.pipeline.predictor
    assert memory is not None
    guessable = [memory.token_of(row) for row in range(64)]
    expected = twin_chain(model, IDS[:9], IDS[9:10])[0]
    assert guesses == [max(guessable, key=lambda token: expected[token])]


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("kv", ["f16", "q8_0/q4_0"])
def test_guesses_of_an_assistant_never_change_a_reply(
    kv: str, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(tmp_path, dim=128, n_heads=2, n_kv_heads=2)
    sampling = Sampling.greedy() if seed is None else Sampling(temperature=1.5, seed=seed)
    replies: list[list[int]] = []
    monkeypatch.setattr(Guessing, "propose", lambda guessing, limit: [])
    monkeypatch.setattr(
        Guessing, "best_draft", lambda guessing, limit, n: limit if guessing._costs.step_s else 0
    )
    draft = Session.draft
    n_guessed = 0

    def scripted_draft(session: Session, token: int, n: int) -> list[int] | None:
        """Draft, and return the right tokens two times of three."""
        guesses = draft(session, token, n)
        first = session.length + 1 - len(LONG)
        if session.length % 3 and first + n <= len(replies[0]):
            return replies[0][first : first + n]
        return guesses

    monkeypatch.setattr(Session, "draft", scripted_draft)
    for guess in (False, True):
        session = model.session(n_ctx=N_CTX, kv=kv)
        session.prefill(LONG)
        replies.append([piece.token_id for piece in session.generate(sampling, 60, guess=guess)])
        n_guessed = session.n_guessed
    assert replies[1] == replies[0]
    assert n_guessed >= len(replies[0]) // 6
    model.close()


def test_an_assistant_guesses_after_a_restored_state(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.prefill(IDS[:12])
    writer = StateWriter(session, tmp_path / "kv.state")
    assert writer.flush(60), writer.problem
    writer.close()
    restored = model.session(n_ctx=N_CTX, kv="f32")
    assert restore_state(restored, tmp_path / "kv.state", IDS[:12]).tokens == 12
    assert not restored.guess_limits.can_draft
    restored.feed(IDS[12:13])
    expected = twin_chain(model, IDS[:13], IDS[13:14])
    assert nmse(chain(restored, IDS[13])[0][:1], expected) < 1e-9


def test_guesses_in_a_row_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """``tests.programs.engine.predictions --golden`` wrote llama.cpp's numbers; its GELU is a table
    in half precision."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[ASSISTED]
    described = assisted_model()
    assistant = assistant_of(described).write(tmp_path / "assistant.gguf")
    logits = our_logits(described.write(tmp_path / "m.gguf"), assistant)
    assert logits.argmax(-1).tolist() == golden["guesses"]
    assert nmse(logits[-1:], np.array(golden["logits"])) < ASSISTED_BOUND


def broken(name: str, described: tiny_gguf.TinyGGUF) -> None:
    """Change an assistant so that it suits no more."""
    if name == "width":
        described.set(f"{ASSISTANT}.embedding_length_out", 128)
    elif name == "window":
        described.set(f"{ASSISTANT}.attention.sliding_window", 12)
    elif name == "heads":
        described.set(f"{ASSISTANT}.attention.head_count_kv", np.array([1, 1, 1, 1], "<u4"))
    elif name == "projection":
        described.drop_tensor("nextn.pre_projection.weight")
        described.add_rows("nextn.pre_projection.weight", np.ones((32, 64)))
    elif name == "vocabulary":
        tokens = tiny_gguf.spm_vocabulary()["tokenizer.ggml.tokens"]
        described.set("tokenizer.ggml.tokens", tokens[:-1])
    else:
        described.set("general.architecture", "llama")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("width", "guesses ahead for a model of width 128, this one has 64"),
        ("window", "guesses ahead for a model with a window of 12, this one has 6"),
        ("heads", "guesses ahead for a model with 1 key heads of 16, this one has 2 of 16"),
        ("projection", "tensor nextn.pre_projection.weight has shape 32 x 64"),
        ("vocabulary", "guesses ahead for a vocabulary of 299 tokens, this model has 300"),
        ("architecture", "'llama' does not guess ahead for other models"),
    ],
)
def test_a_model_opens_without_an_assistant_of_another(
    name: str, problem: str, tmp_path: Path
) -> None:
    described = assisted_model()
    assistant = assistant_of(described)
    broken(name, assistant)
    model = Model.open(
        described.write(tmp_path / "m.gguf"),
        threads=1,
        assistant=assistant.write(tmp_path / "assistant.gguf"),
    )
    assert model.assistant.assistant is None
    [notice] = model.notices
    assert notice.startswith("assistant.gguf: ")
    assert problem in notice
    assert notice.endswith(": it is not used")
    session = model.session(n_ctx=N_CTX)
    session.feed(IDS)
    assert not session.guess_limits.can_draft
    model.close()


def test_a_model_of_another_family_has_no_assistant(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    assistant = assistant_of(assisted_model()).write(tmp_path / "assistant.gguf")
    model = Model.open(path, threads=1, assistant=assistant)
    assert "guesses ahead for Gemma 4, not for llama: it is not used" in model.notices[0]
    model.close()


def test_grouped_rows_of_the_head_are_ignored(tmp_path: Path) -> None:
    described = assisted_model()
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    assistant = assistant_of(described)
    assistant.add_rows("masked_embd_centroids.weight", np.ones((16, 32)))
    assistant.add_vector("masked_embd_ordering", np.ones(267))
    found = Assistant.open(assistant.write(tmp_path / "assistant.gguf"), model.config)
    assert found.config.n_layers == 4
    found.gguf.close()
    model.close()


def test_the_assistant_of_a_model_is_found_in_its_folder(tmp_path: Path) -> None:
    described = assisted_model()
    model = described.write(tmp_path / "m.gguf")
    assert assistant_next_to(model) is None
    other = assistant_of(described)
    broken("width", other)
    other.write(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF gemma4-assistant")
    (tmp_path / "c.gguf").mkdir()
    assert assistant_next_to(model) is None
    assistant = assistant_of(described).write(tmp_path / "d.gguf")
    assert assistant_next_to(model) == assistant
    assert assistant_next_to(tmp_path / "none" / "m.gguf") is None
    assert assistant_next_to(tiny_gguf.write(tmp_path / "llama.gguf")) is None

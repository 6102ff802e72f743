"""Guesses of the token after the next by a model's own block (MTP), against a NumPy twin."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engine import Model, Sampling, Session, predictor
from engine.batch import Batch
from engine.sampling.guessing import Guessing
from engine.saved_state import StateWriter, restore_state
from tests.engine import tiny_gguf
from tests.engine.predicting import PREDICTING, described, twin_chain, twin_drafts
from tests.engine.reference import Array
from tests.engine.refusals import refusal
from tests.engine.test_models import nmse
from tests.programs.engine.predictions import GOLDEN, our_logits

IDS = [3, 17, 5, 90, 4, 4, 61, 33, 20, 8, 77, 12, 9, 150, 101, 2, 44]
N_CTX = 128
I64 = 27
"""Number of a type of tensors."""


@pytest.fixture(params=PREDICTING)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
    """Tiny model with a predictor."""
    model = Model.open(described(request.param).write(tmp_path / "m.gguf"), threads=2)
    yield model
    model.close()


def drafts(session: Session, ids: list[int]) -> Array:
    """Return the predictor's logits for tokens that are computed one by one after it."""
    rows = []
    for token in ids:
        assert session.guess_limits.can_draft
        row = session.pipeline.draft([token], session.tokens, 2)
        assert row is not None
        rows.append(row.copy())
        session.feed([token])
    return np.stack(rows)


def test_predictions_equal_the_numpy_twin(model: Model) -> None:
    expected = twin_drafts(model, IDS)
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:9])
    assert nmse(drafts(session, IDS[9:]), expected[9:]) < 1e-9


def test_guesses_in_a_row_are_those_of_llama_cpp(model: Model) -> None:
    """``tests.programs.engine.predictions --golden`` wrote llama.cpp's numbers."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[model.config.architecture]
    logits = our_logits(model.path)
    assert logits.argmax(-1).tolist() == golden["guesses"]
    expected = np.array(golden["logits"])
    for n in range(3):
        assert nmse(logits[-len(expected) :, n], expected[:, n]) < 1e-6


def test_guesses_in_a_row_equal_the_numpy_twin(model: Model) -> None:
    """The block's own row after its last norm serves as the hidden row of the next guess."""
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:9])
    following = IDS[9:10]
    rows = []
    for _ in range(3):
        row = session.pipeline.draft(following, session.tokens, 2)
        assert row is not None
        rows.append(row.copy())
        following.append(int(row.argmax()))
    expected = twin_chain(model, IDS[:9], following[:-1])
    assert nmse(np.stack(rows), expected) < 1e-9
    assert session.draft(IDS[9], 3) == following[1:]
    assert nmse(drafts(session, IDS[9:]), twin_drafts(model, IDS)[9:]) < 1e-9


def test_predictions_do_not_depend_on_how_tokens_were_fed(model: Model) -> None:
    expected = twin_drafts(model, IDS)
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:3])
    for token in IDS[3:5]:
        session.feed([token])
    session.feed(IDS[5:8])
    session.verify([*IDS[8:10], 7])
    session.truncate(10)
    session.prefill(IDS[:13])
    assert nmse(drafts(session, IDS[13:]), expected[13:]) < 1e-9


def test_predictions_follow_tokens_of_several_sessions(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that sessions compute together are in the predictor's cache, too."""

    def until_both_ask(batch: Batch) -> float | None:
        return 0.0 if len(batch._steps) == 2 and not batch._running else None

    first = model.session(n_ctx=N_CTX, kv="f32")
    sessions = [first, model.session(peer=first)]
    texts = [IDS, IDS[::-1]]
    barrier = threading.Barrier(2)

    def write(session: Session, ids: list[int]) -> None:
        assert session.batch is not None
        with session.batch.writing(session.pipeline):
            barrier.wait(60)
            for token in ids[5:9]:
                session.feed([token])

    for session, ids in zip(sessions, texts, strict=True):
        session.feed(ids[:5])
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Batch, "_wait_s", until_both_ask)
        list(pool.map(write, sessions, texts))
    assert first.batch is not None
    assert (first.batch.n_tokens, first.batch.n_steps) == (8, 4)
    for session, ids in zip(sessions, texts, strict=True):
        assert nmse(drafts(session, ids[9:]), twin_drafts(model, ids)[9:]) < 1e-9


def test_some_rows_of_the_head_suffice(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = twin_drafts(model, IDS)
    monkeypatch.setattr(predictor, "DRAFT_ROWS", 64)
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:9])
    memory = session.pipeline.predictor
    assert memory is not None
    for position, token in enumerate(IDS[9:], 9):
        guesses = session.draft(token, 1)
        guessable = {memory.token_of(row) for row in range(64)}
        assert guessable >= {*IDS[:position]}
        assert guesses == [max(guessable, key=lambda token: expected[position, token])]
        session.feed([token])


def test_a_saved_state_keeps_what_the_predictor_stored(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.prefill(IDS[:12])
    writer = StateWriter(session, tmp_path / "kv.state")
    assert writer.flush(60), writer.problem
    writer.close()
    restored = model.session(n_ctx=N_CTX, kv="f32")
    assert restore_state(restored, tmp_path / "kv.state", IDS[:12]).tokens == 12
    assert not restored.guess_limits.can_draft
    rows = []
    for each in (session, restored):
        each.truncate(12)
        each.feed(IDS[12:14])
        rows.append(drafts(each, IDS[14:]))
    # The row before the first new token is not saved; zeros stand for it.
    assert nmse(rows[1], rows[0]) < 0.2
    assert nmse(rows[0], twin_drafts(model, IDS)[14:]) < 1e-9


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_guesses_of_the_predictor_never_change_a_reply(
    kv: str, seed: int | None, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling.greedy() if seed is None else Sampling(temperature=1.5, seed=seed)
    replies: list[list[int]] = []
    n_guessed = 0
    monkeypatch.setattr(Guessing, "propose", lambda guessing, limit: [])
    monkeypatch.setattr(
        Guessing,
        "best_draft",
        lambda guessing, limit, n_proposed: (
            min(limit, 1 + session.length % 3) if guessing._costs.step_s else 0
        ),
    )
    draft = Session.draft

    def scripted_draft(session: Session, token: int, n: int) -> list[int] | None:
        """Draft, and return the right tokens two times of three."""
        guesses = draft(session, token, n)
        first = session.length + 1 - len(IDS)
        if session.length % 3 and first + n <= len(replies[0]):
            return replies[0][first : first + n]
        return guesses

    monkeypatch.setattr(Session, "draft", scripted_draft)
    for guess in (False, True):
        session = model.session(n_ctx=N_CTX, kv=kv)
        session.prefill(IDS)
        replies.append([piece.token_id for piece in session.generate(sampling, 60, guess=guess)])
        n_guessed = session.n_guessed
    assert replies[1] == replies[0]
    assert n_guessed >= len(replies[0]) // 6


def test_predictions_follow_the_weights_to_huge_pages(model: Model) -> None:
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:9])
    model.use_weights("huge")
    expected = twin_drafts(model, IDS)
    assert nmse(drafts(session, IDS[9:]), expected[9:]) < 1e-9


def test_a_cancelled_prediction_leaves_the_session_as_it_was(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session(n_ctx=N_CTX, kv="f32")
    session.feed(IDS[:9])
    monkeypatch.setattr(session.pipeline, "draft", lambda *arguments: None)
    assert session.draft(IDS[9], 2) is None
    assert session.finish_reason == "cancelled"
    fresh = model.session(n_ctx=N_CTX, kv="f32")
    fresh.feed(IDS[:9])
    assert session.feed(IDS[9:]).tobytes() == fresh.feed(IDS[9:]).tobytes()


def test_the_predictor_can_be_left_out(model: Model) -> None:
    plain = Model.open(model.path, threads=1, has_predictor=False)
    session = plain.session(n_ctx=N_CTX)
    session.feed(IDS)
    assert not session.guess_limits.can_draft
    assert session.kv_bytes < model.session(n_ctx=N_CTX).kv_bytes
    plain.close()


@pytest.mark.parametrize("missing", ["nextn.hnorm.weight", "attn_q.weight"])
def test_a_model_without_its_whole_predictor_opens(missing: str, tmp_path: Path) -> None:
    model = described("qwen35")
    model.drop_tensors(f"blk.2.{missing}")
    opened = Model.open(model.write(tmp_path / "m.gguf"), threads=1)
    assert opened.config.predictor is None
    assert f"blk.2.{missing} is missing" in opened.notices[0]
    assert "the block for guesses is not used" in opened.notices[0]
    session = opened.session(n_ctx=N_CTX)
    session.feed(IDS)
    assert not session.guess_limits.can_draft
    opened.close()


def blocks(model: tiny_gguf.TinyGGUF, of_predictor: bool) -> list[str]:
    """Return the names of the tensors of the predictor, or of the layers."""
    n_blocks = model.value(f"{model.value('general.architecture')}.block_count")
    names = [str(tensor.name) for tensor in model.tensors if str(tensor.name).startswith("blk.")]
    return [name for name in names if name.startswith(f"blk.{n_blocks - 1}.") == of_predictor]


@pytest.mark.parametrize("name", PREDICTING)
def test_a_file_with_the_layers_alone_opens_silently(name: str, tmp_path: Path) -> None:
    model = described(name)
    model.drop_tensors(*blocks(model, of_predictor=True))
    opened = Model.open(model.write(tmp_path / "m.gguf"), threads=1)
    assert opened.config.predictor is None
    assert not opened.notices
    opened.close()


@pytest.mark.parametrize("name", PREDICTING)
def test_a_file_with_the_predictor_alone_is_refused(name: str, tmp_path: Path) -> None:
    model = described(name)
    model.drop_tensors(*blocks(model, of_predictor=False))
    problem = refusal(model.write(tmp_path / "model.gguf"))
    assert "only a block that guesses ahead" in problem
    assert "open the model's own file" in problem


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("eh_proj", (64, 64)),
        ("shared_head_head", (100, 64)),
        ("shared_head_head", (267, 32)),
        ("embed_tokens", (100, 64)),
        ("hnorm", (1, 3)),
    ],
)
def test_a_predictor_of_another_shape_is_not_used(
    name: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    model = described("qwen35")
    full_name = f"blk.2.nextn.{name}.weight"
    model.drop_tensors(full_name)
    model.add_rows(full_name, np.ones(shape))
    opened = Model.open(model.write(tmp_path / "m.gguf"), threads=1)
    assert opened.config.predictor is None
    assert f"{full_name} has shape" in opened.notices[0]
    assert "the block for guesses is not used" in opened.notices[0]
    opened.close()


@pytest.mark.parametrize("token", [5, 266, 10**12, -1])
def test_a_predictor_with_chosen_rows_is_not_used(token: int, tmp_path: Path) -> None:
    model = described("qwen35")
    model.add_rows("blk.2.nextn.shared_head_head.weight", np.ones((100, 64)))
    ids = np.full(100, token, "<i8")
    model.tensors.append(tiny_gguf.TensorEntry("d2t", [100], I64, ids.tobytes()))
    opened = Model.open(model.write(tmp_path / "m.gguf"), threads=1)
    assert opened.config.predictor is None
    assert "d2t: heads with chosen rows are not supported" in opened.notices[0]
    session = opened.session(n_ctx=N_CTX)
    session.feed(IDS)
    opened.close()

"""A conversation's keys and values go to a file and come back, to the bit, while everything else
goes on."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import EngineError, Model, Sampling, Session
from engine.cache.kv_types import KV_TYPES
from engine.gguf.read import read_gguf
from engine.saved_state import (
    StateWriter,
    drop_stored,
    restorable,
    restore_state,
    saved_names,
    stored_in,
    writer,
)
from engine.saved_state.fingerprint import PIECE_BYTES, PIECES, fingerprint_of
from engine.saved_state.segments import Segment
from engine.tuning.fill_cache import fill_cache
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf.write(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", "Q8_0", n_heads=2, n_kv_heads=1
    )
    model = Model.open(path, threads=2)
    yield model
    model.close()


def ids_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


def save(session: Session, path: Path) -> None:
    saving = StateWriter(session, path)
    saving.notify()
    assert saving.flush(60), saving.problem
    assert saving.saved_tokens == session.length
    saving.close()


def same_cache(a: Session, b: Session) -> bool:
    """Compare the keys and values of all whole tiles, and the values of the rest, by copying them
    out."""
    assert a.tokens == b.tokens
    whole = a.length // 8 * 8
    copies = [np.empty(s.memory.copied_bytes(0, whole), np.uint8) for s in (a, b)]
    sizes = [s.memory.copy_out(0, whole, copy) for s, copy in zip((a, b), copies, strict=True)]
    return sizes[0] == sizes[1] and bool((copies[0][: sizes[0]] == copies[1][: sizes[1]]).all())


@pytest.mark.parametrize(
    ("kv", "length"),
    [*(("f16", n) for n in (1, 7, 8, 9, 63, 64, 65, 130)), *((kv, 69) for kv in KV_TYPES)],
)
def test_what_comes_back_is_what_was_there_to_the_bit(
    model: Model, tmp_path: Path, kv: str, length: int
) -> None:
    saved = model.session(n_ctx=256, kv=kv)
    fresh = model.session(n_ctx=256, kv=kv)
    saved.feed(ids_of(length))
    save(saved, tmp_path / "kv.state")
    done = restore_state(fresh, tmp_path / "kv.state", saved.tokens)
    assert (done.tokens, done.lost) == (length, 0)
    assert same_cache(saved, fresh)
    assert (saved.feed([7]) == fresh.feed([7])).all()
    assert (saved.feed(ids_of(9, 1)) == fresh.feed(ids_of(9, 1))).all()
    saved.close()
    fresh.close()


@pytest.mark.parametrize(("saved_ctx", "restored_ctx"), [(128, 256), (256, 128), (200, 97)])
def test_the_size_of_the_context_is_no_part_of_a_state(
    model: Model, tmp_path: Path, saved_ctx: int, restored_ctx: int
) -> None:
    saved = model.session(n_ctx=saved_ctx)
    fresh = model.session(n_ctx=restored_ctx)
    saved.feed(ids_of(90))
    save(saved, tmp_path / "kv.state")
    assert restore_state(fresh, tmp_path / "kv.state", saved.tokens).tokens == 90
    assert (saved.feed([7]) == fresh.feed([7])).all()


def test_a_context_that_is_too_small_takes_what_fits(model: Model, tmp_path: Path) -> None:
    saved = model.session(n_ctx=128)
    fresh = model.session(n_ctx=44)
    wanted = model.session(n_ctx=44)
    saved.feed(ids_of(100))
    save(saved, tmp_path / "kv.state")
    done = restore_state(fresh, tmp_path / "kv.state", saved.tokens)
    assert (done.tokens, done.lost) == (44, 0)
    wanted.feed(ids_of(44))
    assert same_cache(fresh, wanted)


def test_a_reply_goes_on_with_the_same_tokens_after_a_restart(model: Model, tmp_path: Path) -> None:
    undisturbed, first, second = (model.session(n_ctx=256) for _ in range(3))
    question = ids_of(37)
    more = ids_of(11, 5)
    replies = []
    for session in (undisturbed, first):
        session.prefill(question)
        replies.append([piece.token_id for piece in session.generate(Sampling.greedy(), 30)])
    save(first, tmp_path / "kv.state")
    restore_state(second, tmp_path / "kv.state", first.tokens)
    conversation = [*question, *replies[0], *more]
    reused = second.prefill(conversation).reused
    assert (replies[1], reused) == (replies[0], undisturbed.prefill(conversation).reused)
    texts = [
        [piece.token_id for piece in s.generate(Sampling.greedy(), 30)]
        for s in (undisturbed, second)
    ]
    assert texts[0] == texts[1]
    assert same_cache(undisturbed, second)


def test_a_conversation_grows_is_cut_and_grows_on_in_one_file(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session, wanted = model.session(n_ctx=256), model.session(n_ctx=256)
    saving = StateWriter(session, path)
    for step, (cut, n) in enumerate(
        [(0, 70), (70, 3), (73, 50), (41, 60), (101, 1), (8, 9), (17, 120)]
    ):
        session.truncate(cut)
        session.feed(ids_of(n, step))
        assert saving.flush(60), saving.problem
        back = model.session(n_ctx=256)
        assert restore_state(back, path, session.tokens).tokens == session.length
        assert same_cache(session, back)
        back.close()
    saving.close()
    before = set(path.iterdir())
    restore_state(wanted, path, session.tokens)
    wanted.truncate(90)
    wanted.feed(ids_of(20, 99))
    save(wanted, path)
    (new,) = set(path.iterdir()) - before  # the first 64 tokens are not written again
    assert "-110-" in new.name
    for one in (session, wanted):
        back = model.session(n_ctx=256)
        assert restore_state(back, path, one.tokens).tokens == one.length
        assert same_cache(one, back)


def test_tokens_are_saved_while_others_are_computed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MIN_NEW", 8)
    path = tmp_path / "kv.state"
    session = model.session(n_ctx=512)
    session.prefill(ids_of(50))
    saving = StateWriter(session, path)
    for _ in range(3):
        for _ in session.generate(Sampling(seed=1, temperature=2.0), 80):
            saving.notify()
        session.truncate(60)
        session.feed(ids_of(9, 4))
    with saving._changed:
        assert saving._changed.wait_for(lambda: saving.saved_tokens >= 48, 60)
    saving.close()  # without a flush, as when the process is killed
    back = model.session(n_ctx=512)
    n = restore_state(back, path, session.tokens).tokens
    assert n >= 48
    wanted = session.tokens
    session.truncate(min(n, _shared(wanted, back.tokens)))
    back.truncate(session.length)
    assert session.length >= 48
    assert same_cache(session, back)


def _shared(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_tokens_that_are_only_tried_are_never_saved(model: Model, tmp_path: Path) -> None:
    session, back = model.session(n_ctx=256), model.session(n_ctx=256)
    session.feed(ids_of(40))
    saving = StateWriter(session, tmp_path / "kv.state")
    with session.restoring():
        fill_cache(session, 200)
        session.feed([1, 2, 3])
        assert saving.flush(60)
    assert saving.flush(60)
    saving.close()
    assert restore_state(back, tmp_path / "kv.state", session.tokens).tokens == 40
    assert same_cache(session, back)


def test_conversations_that_begin_alike_share_those_segments(model: Model, tmp_path: Path) -> None:
    place = tmp_path / "states"
    document = ids_of(150)
    for number, length in ((1, 40), (2, 90), (3, 90)):
        session = model.session(n_ctx=256)
        session.feed([*document, *ids_of(length, number)])
        save(session, place)
    lasts = sorted(one.segment.last for one in stored_in(place))
    assert lasts == [64, 128, 190, 192, 192, 240, 240]
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    back = model.session(n_ctx=256)
    fresh = model.session(n_ctx=256)
    wanted = [*document, *ids_of(40, 4)]
    assert restorable(back, place, wanted) == 150
    assert restore_state(back, place, wanted).tokens == 150
    fresh.feed(document)
    assert same_cache(back, fresh)
    held = [Segment.of_name(one) for one in saved_names(back, place, document)]
    # of the third, others hold more
    assert sorted(one.last for one in held if one is not None) == [
        64,
        128,
    ]
    assert saved_names(back, tmp_path / "none", document) == []
    # two go on from there, and agree alike
    assert restorable(back, place, [*document, *document]) == 150


def test_a_conversation_that_grows_leaves_no_shorter_ends(model: Model, tmp_path: Path) -> None:
    place = tmp_path / "states"
    for start in (0, 40, 90):
        session = model.session(n_ctx=256)
        if start:
            assert restore_state(session, place, ids_of(200)).tokens == start
        saving = StateWriter(session, place)
        for end in (start + 20, {0: 40, 40: 90, 90: 130}[start]):
            session.prefill(ids_of(200)[:end])
            assert saving.flush(60), saving.problem
        saving.close()
    assert sorted(one.segment.last for one in stored_in(place)) == [64, 128, 130]


def test_only_an_empty_session_is_filled(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3])
    save(session, tmp_path / "kv.state")
    with pytest.raises(EngineError, match="empty"):
        restore_state(session, tmp_path / "kv.state", [1, 2, 3])
    assert session.tokens == [1, 2, 3]


def test_the_fingerprint_depends_on_content_and_not_on_the_name(tmp_path: Path) -> None:
    def fingerprint(tiny: tiny_gguf.TinyGGUF, name: str = "m.gguf") -> str:
        model = Model.open(tiny.write(tmp_path / name), threads=1)
        found = model.fingerprint
        model.close()
        return found

    plain = fingerprint(tiny_gguf.model())
    assert plain == fingerprint(tiny_gguf.model(), "renamed.gguf")
    other_weights = tiny_gguf.model(seed=1)
    other_layer = tiny_gguf.model()
    other_template = tiny_gguf.model()
    other_layer.fill("blk.1.attn_k.weight", 0.01)
    other_template.set("tokenizer.chat_template", "{{ messages }}")
    found = {fingerprint(tiny) for tiny in (other_weights, other_layer, other_template)}
    assert len(found | {plain}) == 4


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "token_embd.weight"])
def test_the_fingerprint_tells_a_run_of_zeros_in_any_place(name: str, tmp_path: Path) -> None:
    path = tiny_gguf.model(dim=128).write(tmp_path / "m.gguf")
    gguf = read_gguf(path)
    tensor = gguf.tensors[name]
    plain = fingerprint_of(gguf)
    gguf.close()
    sound = path.read_bytes()
    run = tensor.size_bytes // 31 + 1
    assert tensor.size_bytes > PIECES * PIECE_BYTES
    for start in np.linspace(
        tensor.offset_bytes, tensor.offset_bytes + tensor.size_bytes - run, 40
    ).astype(int):
        path.write_bytes(sound[:start] + bytes(run) + sound[start + run :])
        edited = read_gguf(path)
        assert fingerprint_of(edited) != plain, start
        edited.close()


def test_another_model_of_the_same_shape_finds_nothing(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=64)
    session.feed(ids_of(20))
    save(session, tmp_path / "kv.state")
    path = tiny_gguf.write(
        tmp_path / "other.gguf", "llama", "Q8_0", n_heads=2, n_kv_heads=1, seed=1
    )
    other = Model.open(path, threads=1)
    empty = other.session(n_ctx=64)
    assert restore_state(empty, tmp_path / "kv.state", session.tokens).tokens == 0
    other.close()


def test_least_recently_used_states_go_first_ends_before_starts(
    model: Model, tmp_path: Path
) -> None:
    place = tmp_path / "states"
    session = model.session(n_ctx=256)
    saving = StateWriter(session, place)
    for number in (1, 2, 3):
        session.truncate(64)
        session.feed(ids_of(150 - session.length, number))
        before = set(place.iterdir()) if place.exists() else set()
        assert saving.flush(60), saving.problem
        for path in set(place.iterdir()) - before:
            os.utime(path, (1e9 + number, 1e9 + number))
    saving.close()
    order = stored_in(place)
    assert [one.segment.last for one in order] == [150, 128, 150, 128, 150, 128, 64]
    os.utime(order[0].path, (2e9, 2e9))
    moved = stored_in(place)
    assert {one.path for one in moved[-3:]} == {order[0].path, order[1].path, order[6].path}
    freed_bytes = drop_stored(moved, 1)
    assert freed_bytes == moved[0].n_bytes
    assert [one.path for one in stored_in(place)] == [one.path for one in moved[1:]]


def test_a_writer_outlives_its_session_and_leaves_no_thread(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=64)
    session.feed(ids_of(20))
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60)
    session.close()
    saving.notify()
    saving.flush(60)
    saving.close()
    saving.close()
    assert "state-writer" not in {thread.name for thread in threading.enumerate()}
    back = model.session(n_ctx=64)
    assert restore_state(back, tmp_path / "kv.state", ids_of(20)).tokens == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
def test_a_writer_that_is_killed_leaves_a_sound_state_or_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.doomed_writer", str(tmp_path), "--kills", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "none of them wrong" in done.stdout

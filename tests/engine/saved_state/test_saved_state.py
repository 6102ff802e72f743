"""Keys and values of a conversation are saved in the background and restored bit for bit."""

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
    tokens_after,
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
    """Compare copies of the keys and values of all complete tiles."""
    assert a.tokens == b.tokens
    whole = a.length // 8 * 8
    copies = [np.empty(s.memory.copied_bytes(0, whole), np.uint8) for s in (a, b)]
    sizes = [s.memory.copy_out(0, whole, copy) for s, copy in zip((a, b), copies, strict=True)]
    return sizes[0] == sizes[1] and bool((copies[0][: sizes[0]] == copies[1][: sizes[1]]).all())


@pytest.mark.parametrize(
    ("kv", "length"),
    [*(("f16", n) for n in (1, 7, 8, 9, 63, 64, 65, 130)), *((kv, 69) for kv in KV_TYPES)],
)
def test_a_restored_cache_equals_the_saved_one_bit_for_bit(
    model: Model, tmp_path: Path, kv: str, length: int
) -> None:
    saved = model.session(n_ctx=256, kv=kv)
    fresh = model.session(n_ctx=256, kv=kv)
    saved.feed(ids_of(length))
    save(saved, tmp_path / "kv.state")
    restored = restore_state(fresh, tmp_path / "kv.state", saved.tokens)
    assert (restored.tokens, restored.lost) == (length, 0)
    assert same_cache(saved, fresh)
    assert (saved.feed([7]) == fresh.feed([7])).all()
    assert (saved.feed(ids_of(9, 1)) == fresh.feed(ids_of(9, 1))).all()
    saved.close()
    fresh.close()


@pytest.mark.parametrize(("saved_ctx", "restored_ctx"), [(128, 256), (256, 128), (200, 97)])
def test_a_state_does_not_depend_on_the_context_size(
    model: Model, tmp_path: Path, saved_ctx: int, restored_ctx: int
) -> None:
    saved = model.session(n_ctx=saved_ctx)
    fresh = model.session(n_ctx=restored_ctx)
    saved.feed(ids_of(90))
    save(saved, tmp_path / "kv.state")
    assert restore_state(fresh, tmp_path / "kv.state", saved.tokens).tokens == 90
    assert (saved.feed([7]) == fresh.feed([7])).all()


def test_a_context_that_is_too_small_restores_what_fits(model: Model, tmp_path: Path) -> None:
    saved = model.session(n_ctx=128)
    fresh = model.session(n_ctx=44)
    expected = model.session(n_ctx=44)
    saved.feed(ids_of(100))
    save(saved, tmp_path / "kv.state")
    restored = restore_state(fresh, tmp_path / "kv.state", saved.tokens)
    assert (restored.tokens, restored.lost) == (44, 0)
    expected.feed(ids_of(44))
    assert same_cache(fresh, expected)


def test_a_reply_continues_with_equal_tokens_after_a_restart(model: Model, tmp_path: Path) -> None:
    undisturbed, first, second = (model.session(n_ctx=256) for _ in range(3))
    question = ids_of(37)
    second_question = ids_of(11, 5)
    replies = []
    for session in (undisturbed, first):
        session.prefill(question)
        replies.append([piece.token_id for piece in session.generate(Sampling.greedy(), 30)])
    save(first, tmp_path / "kv.state")
    restore_state(second, tmp_path / "kv.state", first.tokens)
    conversation = [*question, *replies[0], *second_question]
    reused = second.prefill(conversation).reused
    assert (replies[1], reused) == (replies[0], undisturbed.prefill(conversation).reused)
    second_replies = [
        [piece.token_id for piece in s.generate(Sampling.greedy(), 30)]
        for s in (undisturbed, second)
    ]
    assert second_replies[0] == second_replies[1]
    assert same_cache(undisturbed, second)


def test_a_saved_conversation_can_grow_and_be_cut_repeatedly(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session, continued = model.session(n_ctx=256), model.session(n_ctx=256)
    saving = StateWriter(session, path)
    for step, (cut, n) in enumerate(
        [(0, 70), (70, 3), (73, 50), (41, 60), (101, 1), (8, 9), (17, 120)]
    ):
        session.truncate(cut)
        session.feed(ids_of(n, step))
        assert saving.flush(60), saving.problem
        restored = model.session(n_ctx=256)
        assert restore_state(restored, path, session.tokens).tokens == session.length
        assert same_cache(session, restored)
        restored.close()
    saving.close()
    earlier_files = set(path.iterdir())
    restore_state(continued, path, session.tokens)
    continued.truncate(90)
    continued.feed(ids_of(20, 99))
    save(continued, path)
    # The first 64 tokens are not written again.
    (new_file,) = set(path.iterdir()) - earlier_files
    assert "-110-" in new_file.name
    for saved in (session, continued):
        restored = model.session(n_ctx=256)
        assert restore_state(restored, path, saved.tokens).tokens == saved.length
        assert same_cache(saved, restored)


def test_tokens_are_saved_while_later_ones_are_computed(
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
    saving.close()  # no flush, as if the process were killed
    restored = model.session(n_ctx=512)
    n = restore_state(restored, path, session.tokens).tokens
    assert n >= 48
    tokens = session.tokens
    session.truncate(min(n, _shared(tokens, restored.tokens)))
    restored.truncate(session.length)
    assert session.length >= 48
    assert same_cache(session, restored)


def _shared(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_temporary_tokens_are_never_saved(model: Model, tmp_path: Path) -> None:
    session, restored = model.session(n_ctx=256), model.session(n_ctx=256)
    session.feed(ids_of(40))
    saving = StateWriter(session, tmp_path / "kv.state")
    with session.restoring():
        fill_cache(session, 200)
        session.feed([1, 2, 3])
        assert saving.flush(60)
    assert saving.flush(60)
    saving.close()
    assert restore_state(restored, tmp_path / "kv.state", session.tokens).tokens == 40
    assert same_cache(session, restored)


def test_conversations_with_a_common_start_share_segments(model: Model, tmp_path: Path) -> None:
    directory = tmp_path / "states"
    document = ids_of(150)
    for number, length in ((1, 40), (2, 90), (3, 90)):
        session = model.session(n_ctx=256)
        session.feed([*document, *ids_of(length, number)])
        save(session, directory)
    lasts = sorted(stored.segment.last for stored in stored_in(directory))
    assert lasts == [64, 128, 190, 192, 192, 240, 240]
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    restored = model.session(n_ctx=256)
    fresh = model.session(n_ctx=256)
    tokens = [*document, *ids_of(40, 4)]
    assert restorable(restored, directory, tokens) == 150
    assert restore_state(restored, directory, tokens).tokens == 150
    fresh.feed(document)
    assert same_cache(restored, fresh)
    segments = [Segment.of_name(stored) for stored in saved_names(restored, directory, document)]
    # Other conversations have a longer third segment.
    assert sorted(stored.last for stored in segments if stored is not None) == [
        64,
        128,
    ]
    assert saved_names(restored, tmp_path / "none", document) == []
    # Two stored conversations continue from here and match equally well.
    assert restorable(restored, directory, [*document, *document]) == 150


def test_a_growing_conversation_leaves_no_shorter_last_segments(
    model: Model, tmp_path: Path
) -> None:
    directory = tmp_path / "states"
    for start in (0, 40, 90):
        session = model.session(n_ctx=256)
        if start:
            assert restore_state(session, directory, ids_of(200)).tokens == start
        saving = StateWriter(session, directory)
        for end in (start + 20, {0: 40, 40: 90, 90: 130}[start]):
            session.prefill(ids_of(200)[:end])
            assert saving.flush(60), saving.problem
        saving.close()
    assert sorted(stored.segment.last for stored in stored_in(directory)) == [64, 128, 130]


def test_a_state_is_restored_only_into_an_empty_session(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3])
    save(session, tmp_path / "kv.state")
    with pytest.raises(EngineError, match="empty"):
        restore_state(session, tmp_path / "kv.state", [1, 2, 3])
    assert session.tokens == [1, 2, 3]


def test_the_fingerprint_depends_on_content_not_on_the_name(tmp_path: Path) -> None:
    def fingerprint(tiny: tiny_gguf.TinyGGUF, name: str = "m.gguf") -> str:
        model = Model.open(tiny.write(tmp_path / name), threads=1)
        fingerprints = model.fingerprint
        model.close()
        return fingerprints

    plain = fingerprint(tiny_gguf.model())
    assert plain == fingerprint(tiny_gguf.model(), "renamed.gguf")
    other_weights = tiny_gguf.model(seed=1)
    other_layer = tiny_gguf.model()
    other_template = tiny_gguf.model()
    other_layer.fill("blk.1.attn_k.weight", 0.01)
    other_template.set("tokenizer.chat_template", "{{ messages }}")
    fingerprints = {fingerprint(tiny) for tiny in (other_weights, other_layer, other_template)}
    assert len(fingerprints | {plain}) == 4


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "token_embd.weight"])
def test_the_fingerprint_detects_a_run_of_zeros_anywhere(name: str, tmp_path: Path) -> None:
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


def test_a_state_is_not_restored_into_another_model(model: Model, tmp_path: Path) -> None:
    session = model.session(n_ctx=64)
    session.feed(ids_of(20))
    save(session, tmp_path / "kv.state")
    path = tiny_gguf.write(
        tmp_path / "other.gguf", "llama", "Q8_0", n_heads=2, n_kv_heads=1, seed=1
    )
    other_model = Model.open(path, threads=1)
    empty = other_model.session(n_ctx=64)
    assert restore_state(empty, tmp_path / "kv.state", session.tokens).tokens == 0
    other_model.close()


def test_least_recently_used_segments_are_dropped_first(model: Model, tmp_path: Path) -> None:
    directory = tmp_path / "states"
    session = model.session(n_ctx=256)
    saving = StateWriter(session, directory)
    for number in (1, 2, 3):
        session.truncate(64)
        session.feed(ids_of(150 - session.length, number))
        earlier_files = set(directory.iterdir()) if directory.exists() else set()
        assert saving.flush(60), saving.problem
        for path in set(directory.iterdir()) - earlier_files:
            os.utime(path, (1e9 + number, 1e9 + number))
    saving.close()
    order = stored_in(directory)
    assert [stored.segment.last for stored in order] == [150, 128, 150, 128, 150, 128, 64]
    os.utime(order[0].path, (2e9, 2e9))
    moved = stored_in(directory)
    assert {stored.path for stored in moved[-3:]} == {order[0].path, order[1].path, order[6].path}
    freed_bytes = drop_stored(moved, 1)
    assert freed_bytes == moved[0].n_bytes
    assert [stored.path for stored in stored_in(directory)] == [stored.path for stored in moved[1:]]


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
    restored = model.session(n_ctx=64)
    assert restore_state(restored, tmp_path / "kv.state", ids_of(20)).tokens == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
def test_a_writer_that_is_killed_leaves_a_sound_state_or_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.doomed_writer", str(tmp_path), "--kills", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "none of them wrong" in done.stdout


def test_the_tokens_after_a_prompt_are_found_up_to_its_end(model: Model, tmp_path: Path) -> None:
    end_id = next(iter(model.tokenizer.end_ids))
    prompt = ids_of(100)
    replies = [ids_of(n, seed=n) for n in (9, 28, 150)]
    for reply in replies:
        session = model.session(n_ctx=512)
        session.feed([*prompt, *reply, end_id, *ids_of(20, seed=3)])
        save(session, tmp_path)
        session.close()
    session = model.session(n_ctx=512)
    session.feed([*prompt, *ids_of(92, seed=1)])  # has no end token, and fills its segment
    save(session, tmp_path)
    matches = list(tokens_after(session, tmp_path, prompt))
    assert sorted(matches, key=len) == [*replies[:2], ids_of(92, seed=1), replies[2]]
    assert list(tokens_after(session, tmp_path, [*prompt, *replies[1][:5]])) == [replies[1][5:]]
    assert list(tokens_after(session, tmp_path, [*prompt, 1, 2])) == []
    assert list(tokens_after(session, tmp_path / "none", prompt)) == []
    for path in tmp_path.glob("*.kv"):
        path.write_bytes(path.read_bytes()[:30])
    assert list(tokens_after(session, tmp_path, prompt)) == []
    session.close()

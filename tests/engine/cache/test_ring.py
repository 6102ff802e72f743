"""Rings of sliding layers: the same numbers as a whole cache, and going back, saving and shifting
where they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import EngineError, Model, Sampling, Session
from engine.cache import kv_cache
from engine.cache.kv_cache import KVCache, memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.cache.layer_memory import MemoryNeeds
from engine.cache.ring import RING_BLOCK, RingReach, ring_slots
from engine.saved_state import StateWriter, restore_state
from engine.tuning.fill_cache import fill_cache
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import WINDOW

N_CTX = 2048
SLOTS = ring_slots(WINDOW)
IDS = np.random.default_rng(5).integers(3, 250, 1900).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model = Model.open(tiny_gguf.write(path, "gemma3", context_length=4096, head_dim=32), threads=2)
    yield model
    model.close()


def whole(model: Model, kv: str = "f16") -> Session:
    """A session whose sliding layers keep everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "ring_slots", lambda window: 1 << 20)
        return model.session(n_ctx=N_CTX, kv=kv)


def save(session: Session, path: Path) -> None:
    saving = StateWriter(session, path)
    try:
        assert saving.flush(60), saving.problem
    finally:
        saving.close()


@pytest.mark.parametrize("kv", KV_TYPES)
def test_a_ring_computes_what_a_whole_cache_does_to_the_bit(model: Model, kv: str) -> None:
    ring = model.session(n_ctx=N_CTX, kv=kv)
    all_kept = whole(model, kv)
    assert ring.kv_bytes < all_kept.kv_bytes
    at = 0
    for n in (1, 7, 500, 1, 260, 3, 255, 1, 4, 700, 1):
        one, other = (session.feed(IDS[at : at + n]) for session in (ring, all_kept))
        assert one.tobytes() == other.tobytes()
        at += n
    assert at > 3 * SLOTS


def test_only_layers_without_a_window_grow_with_the_context(model: Model) -> None:
    needs = memory_needs(model.config, KV_TYPES["f16"])
    session = model.session(n_ctx=N_CTX)
    windows = [one.window for one in model.config.attentions.values()]
    each = needs.bytes_for(8) // 8 // len(windows)
    assert needs == MemoryNeeds(
        windows.count(None) * each, rings=((SLOTS, windows.count(WINDOW) * each),)
    )
    assert session.kv_bytes == needs.bytes_for(N_CTX)
    assert SLOTS <= WINDOW + RING_BLOCK + 255


def test_gemma_3_4b_needs_little_more_than_its_windows_at_8k() -> None:
    in_windows = 5 * 8192 + 29 * (1024 + RING_BLOCK)
    needs = MemoryNeeds(5, rings=((ring_slots(1024), 29),))
    assert needs.bytes_for(8192) == in_windows
    assert needs.bytes_for(8192) < 0.29 * 34 * 8192


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(8, 5000), st.integers(1, 100)), max_size=3),
    st.integers(0, 10**6),
)
def test_the_largest_context_is_the_one_that_just_fits(
    each: int, rings: list[tuple[int, int]], room: int
) -> None:
    needs = MemoryNeeds(each + 1, 5, tuple(sorted(rings)))
    n_ctx = needs.largest_context(room)
    assert n_ctx % 8 == 0
    assert n_ctx == 0 or needs.bytes_for(n_ctx) <= room
    assert needs.bytes_for(n_ctx + 8) > room


def test_going_back_as_far_as_the_ring_reaches_costs_nothing(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    all_kept = whole(model)
    for session in (ring, all_kept):
        session.feed(IDS[:1500])
    back = 1500 - (SLOTS - WINDOW)
    other = [*IDS[:back], *IDS[1600:1650]]
    assert ring.reusable(other) == back
    for session in (ring, all_kept):
        assert session.prefill(other).reused == back
    assert ring.feed([9]).tobytes() == all_kept.feed([9]).tobytes()


def test_going_back_past_the_ring_computes_everything_again(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    all_kept = whole(model)
    for session in (ring, all_kept):
        session.feed(IDS[:1500])
    other = [*IDS[: 1500 - (SLOTS - WINDOW) - 2], *IDS[1600:1650]]
    assert ring.reusable(other) == 0
    assert ring.length == 1500
    done = ring.prefill(other)
    assert (done.reused, done.fed) == (0, len(other))
    all_kept.prefill(other)
    assert ring.feed([9]).tobytes() == all_kept.feed([9]).tobytes()
    assert ring.truncate(3) == 0


def test_what_is_only_tried_is_forgotten_however_long_it_was(model: Model) -> None:
    for tried in (3, 100, 900):
        ring = model.session(n_ctx=N_CTX)
        all_kept = whole(model)
        for session in (ring, all_kept):
            session.feed(IDS[:600])
        with ring.restoring():
            ring.feed(IDS[700 : 700 + tried])
        with ring.restoring():
            ring.truncate(592)
            fill_cache(ring, 1600)
            ring.feed([4])
        assert ring.truncate(592) == all_kept.truncate(592) == 592
        assert ring.tokens == IDS[:592]
        assert ring.feed([9]).tobytes() == all_kept.feed([9]).tobytes()


def test_a_saved_state_goes_on_and_goes_back(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = model.session(n_ctx=N_CTX)
    all_kept = whole(model)
    saving = StateWriter(session, path)
    for at in range(0, 1500, 100):
        session.feed(IDS[at : at + 100])
        assert saving.flush(60), saving.problem
    saving.close()
    all_kept.feed(IDS[:1500])
    for wanted in (None, [*IDS[:1500], 9], [*IDS[:700], 3, 4]):
        n = 1500 if wanted is None else len(wanted) - 1 if wanted[-1] == 9 else 700
        back = model.session(n_ctx=N_CTX)
        assert restore_state(back, path, wanted or IDS[:1500]).tokens == n
        assert all_kept.truncate(n) == n
        assert back.feed([9]).tobytes() == all_kept.feed([9]).tobytes()


def test_a_state_without_the_windows_positions_is_read_again(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = model.session(n_ctx=N_CTX)
    all_kept = whole(model)
    for one in (session, all_kept):
        one.feed(IDS[:1500])
    save(session, path)
    back = model.session(n_ctx=N_CTX)
    assert restore_state(back, path, session.tokens).tokens == 1500
    assert back.feed([9]).tobytes() == all_kept.feed([9]).tobytes()
    early = model.session(n_ctx=N_CTX)
    found = restore_state(early, path, [*IDS[:700], 3])
    assert (found.tokens, early.length) == (0, 0)
    small = model.session(n_ctx=SLOTS)  # holds every position, but the file does not
    assert restore_state(small, path, session.tokens).tokens == 0
    assert early.prefill(IDS[:80]).fed == 80


def test_states_of_a_whole_cache_and_of_a_ring_are_the_same_file(
    model: Model, tmp_path: Path
) -> None:
    for number, (saver, restorer) in enumerate(((SLOTS, N_CTX), (N_CTX, SLOTS))):
        path = tmp_path / f"{number}.state"
        session, back = model.session(n_ctx=saver), model.session(n_ctx=restorer)
        session.feed(IDS[:400])
        save(session, path)
        assert restore_state(back, path, session.tokens).tokens == 400
        assert back.feed([9]).tobytes() == session.feed([9]).tobytes()


def test_what_is_overwritten_while_it_is_copied_is_left_out(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session(n_ctx=N_CTX)
    session.feed(IDS[:600])
    memory = session.memory
    assert isinstance(memory, KVCache)
    answers = iter([True, False])
    monkeypatch.setattr(RingReach, "holds", lambda self, first: next(answers))
    out = np.empty(memory.copied_bytes(512, 576), np.uint8)
    n_bytes = memory.copy_out(512, 576, out)
    assert 0 < n_bytes < memory.copied_bytes(512, 576)
    assert memory.is_copy(512, 576, n_bytes)


def test_dropped_turns_move_what_the_window_sees(model: Model) -> None:
    for n_keep, n_drop in ((20, 300), (0, 40), (8, 1000), (20, 1465)):
        ring = model.session(n_ctx=N_CTX)
        all_kept = whole(model)
        for session in (ring, all_kept):
            session.feed(IDS[:1500])
            session.shift(n_keep, n_drop)
        for n in (1, 300):
            assert (
                ring.feed(IDS[1500 : 1500 + n]).tobytes()
                == all_kept.feed(IDS[1500 : 1500 + n]).tobytes()
            )


def test_what_the_ring_lost_cannot_be_shifted_to(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    ring.feed(IDS[:1500])
    with pytest.raises(EngineError, match="cannot forget these tokens"):
        ring.shift(20, 1478)  # the two that stay see four of the first twenty
    wanted = [*IDS[:20], *IDS[1480:1500], 9]
    assert ring.shift_towards(wanted) == 1460
    assert ring.prefill(wanted).fed == 1


def test_a_reply_runs_round_the_ring(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    all_kept = whole(model)
    replies = []
    for session in (ring, all_kept):
        session.prefill(IDS[:10])
        replies.append([piece.token_id for piece in session.generate(Sampling.greedy(), 2 * SLOTS)])
    assert replies[0] == replies[1]
    assert len(replies[0]) > SLOTS or ring.finish_reason == "stop"

"""Ring buffers of sliding-window layers: equal results to a full cache, and rewinding, saving and
shifting at the limits of the ring."""

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


def full_session(model: Model, kv: str = "f16") -> Session:
    """Return a session whose sliding-window layers store all positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "ring_slots", lambda window, picture_rows: 1 << 20)
        return model.session(n_ctx=N_CTX, kv=kv)


def save(session: Session, path: Path) -> None:
    saving = StateWriter(session, path)
    try:
        assert saving.flush(60), saving.problem
    finally:
        saving.close()


@pytest.mark.parametrize("kv", KV_TYPES)
def test_a_ring_equals_a_full_cache_bit_for_bit(model: Model, kv: str) -> None:
    ring = model.session(n_ctx=N_CTX, kv=kv)
    full = full_session(model, kv)
    assert ring.kv_bytes < full.kv_bytes
    start = 0
    for n in (1, 7, 500, 1, 260, 3, 255, 1, 4, 700, 1):
        ring_logits, full_logits = (
            session.feed(IDS[start : start + n]) for session in (ring, full)
        )
        assert ring_logits.tobytes() == full_logits.tobytes()
        start += n
    assert start > 3 * SLOTS


def test_only_layers_without_a_window_grow_with_the_context(model: Model) -> None:
    needs = memory_needs(model.config, KV_TYPES["f16"])
    session = model.session(n_ctx=N_CTX)
    windows = [attention.window for attention in model.config.attentions.values()]
    layer_bytes = needs.bytes_for(8) // 8 // len(windows)
    assert needs == MemoryNeeds(
        windows.count(None) * layer_bytes, rings=((SLOTS, windows.count(WINDOW) * layer_bytes),)
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
def test_the_largest_context_just_fits(
    position_bytes: int, rings: list[tuple[int, int]], n_bytes: int
) -> None:
    needs = MemoryNeeds(position_bytes + 1, 5, tuple(sorted(rings)))
    n_ctx = needs.largest_context(n_bytes)
    assert n_ctx % 8 == 0
    assert n_ctx == 0 or needs.bytes_for(n_ctx) <= n_bytes
    assert needs.bytes_for(n_ctx + 8) > n_bytes


def test_rewinding_within_the_ring_costs_nothing(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    full = full_session(model)
    for session in (ring, full):
        session.feed(IDS[:1500])
    back = 1500 - (SLOTS - WINDOW)
    prompt = [*IDS[:back], *IDS[1600:1650]]
    assert ring.reusable(prompt) == back
    for session in (ring, full):
        assert session.prefill(prompt).reused == back
    assert ring.feed([9]).tobytes() == full.feed([9]).tobytes()


def test_rewinding_past_the_ring_computes_everything_again(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    full = full_session(model)
    for session in (ring, full):
        session.feed(IDS[:1500])
    prompt = [*IDS[: 1500 - (SLOTS - WINDOW) - 2], *IDS[1600:1650]]
    assert ring.reusable(prompt) == 0
    assert ring.length == 1500
    done = ring.prefill(prompt)
    assert (done.reused, done.fed) == (0, len(prompt))
    full.prefill(prompt)
    assert ring.feed([9]).tobytes() == full.feed([9]).tobytes()
    assert ring.truncate(3) == 0


def test_temporary_tokens_of_any_number_are_forgotten(model: Model) -> None:
    for n_tried in (3, 100, 900):
        ring = model.session(n_ctx=N_CTX)
        full = full_session(model)
        for session in (ring, full):
            session.feed(IDS[:600])
        with ring.restoring():
            ring.feed(IDS[700 : 700 + n_tried])
        with ring.restoring():
            ring.truncate(592)
            fill_cache(ring, 1600)
            ring.feed([4])
        assert ring.truncate(592) == full.truncate(592) == 592
        assert ring.tokens == IDS[:592]
        assert ring.feed([9]).tobytes() == full.feed([9]).tobytes()


def test_a_restored_state_can_continue_and_rewind(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = model.session(n_ctx=N_CTX)
    full = full_session(model)
    saving = StateWriter(session, path)
    for start in range(0, 1500, 100):
        session.feed(IDS[start : start + 100])
        assert saving.flush(60), saving.problem
    saving.close()
    full.feed(IDS[:1500])
    for prompt in (None, [*IDS[:1500], 9], [*IDS[:700], 3, 4]):
        if prompt is None:
            n = 1500
        elif prompt[-1] == 9:
            n = len(prompt) - 1
        else:
            n = 700
        restored = model.session(n_ctx=N_CTX)
        assert restore_state(restored, path, prompt or IDS[:1500]).tokens == n
        assert full.truncate(n) == n
        assert restored.feed([9]).tobytes() == full.feed([9]).tobytes()


def test_a_state_without_positions_of_the_window_is_not_used(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = model.session(n_ctx=N_CTX)
    full = full_session(model)
    for fed in (session, full):
        fed.feed(IDS[:1500])
    save(session, path)
    restored = model.session(n_ctx=N_CTX)
    assert restore_state(restored, path, session.tokens).tokens == 1500
    assert restored.feed([9]).tobytes() == full.feed([9]).tobytes()
    early = model.session(n_ctx=N_CTX)
    result = restore_state(early, path, [*IDS[:700], 3])
    assert (result.tokens, early.length) == (0, 0)
    small = model.session(n_ctx=SLOTS)  # needs every position, but the file lacks some
    assert restore_state(small, path, session.tokens).tokens == 0
    assert early.prefill(IDS[:80]).fed == 80


def test_states_of_full_caches_and_rings_are_interchangeable(model: Model, tmp_path: Path) -> None:
    for number, (saved_ctx, restored_ctx) in enumerate(((SLOTS, N_CTX), (N_CTX, SLOTS))):
        path = tmp_path / f"{number}.state"
        session, restored = model.session(n_ctx=saved_ctx), model.session(n_ctx=restored_ctx)
        session.feed(IDS[:400])
        save(session, path)
        assert restore_state(restored, path, session.tokens).tokens == 400
        assert restored.feed([9]).tobytes() == session.feed([9]).tobytes()


def test_positions_overwritten_during_a_copy_are_left_out(
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


def test_dropping_turns_moves_the_window(model: Model) -> None:
    for n_keep, n_drop in ((20, 300), (0, 40), (8, 1000), (20, 1465)):
        ring = model.session(n_ctx=N_CTX)
        full = full_session(model)
        for session in (ring, full):
            session.feed(IDS[:1500])
            session.shift(n_keep, n_drop)
        for n in (1, 300):
            assert (
                ring.feed(IDS[1500 : 1500 + n]).tobytes()
                == full.feed(IDS[1500 : 1500 + n]).tobytes()
            )


def test_shifting_cannot_use_positions_lost_from_the_ring(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    ring.feed(IDS[:1500])
    with pytest.raises(EngineError, match="cannot forget these tokens"):
        ring.shift(20, 1478)  # the last two tokens would see four of the first twenty
    tokens = [*IDS[:20], *IDS[1480:1500], 9]
    assert ring.shift_towards(tokens) == 1460
    assert ring.prefill(tokens).fed == 1


def test_a_reply_can_be_longer_than_the_ring(model: Model) -> None:
    ring = model.session(n_ctx=N_CTX)
    full = full_session(model)
    replies = []
    for session in (ring, full):
        session.prefill(IDS[:10])
        replies.append([piece.token_id for piece in session.generate(Sampling.greedy(), 2 * SLOTS)])
    assert replies[0] == replies[1]
    assert len(replies[0]) > SLOTS or ring.finish_reason == "stop"

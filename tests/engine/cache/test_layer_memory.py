"""The protocol of layer memories, with a memory that cannot rewind to every position and with
layers of different shapes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EngineError, Model, Sampling, Session
from engine.cache.kv_cache import KVCache, kv_type_of, memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.cache.layer_memory import MemoryNeeds
from engine.errors import Cancelled
from engine.saved_state import StateWriter, restore_state
from engine.tuning.fill_cache import fill_cache
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import VARIANTS

EVERY = 16
IDS = np.random.default_rng(3).integers(3, 250, 200).tolist()


class Checkpoints:
    """Keys and values that can rewind only to saved positions and multiples of sixteen.

    A rewind wipes all later positions, so code that relies on them computes nonsense, as it would
    with a recurrent state.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._end = 0
        self._kept: set[int] = set()
        self.n_bytes = cache.n_bytes
        self.asked: list[int] = []

    def commit(self, n: int) -> None:
        self._end = n

    def save_end(self, n: int) -> None:
        self._kept.add(n)

    def drop_saved_end(self) -> None:
        self._kept.clear()

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        return False

    def reachable(self, n: int) -> int:
        return n if n in (self._end, *self._kept) else n // EVERY * EVERY

    def rewind(self, n: int) -> int:
        self.asked.append(n)
        if n == self._end:
            return n
        self._kept = {position for position in self._kept if position <= n}
        self._end = self.reachable(n)
        self._wipe(self._end)
        return self._end

    def _wipe(self, n: int) -> None:
        for region in self._cache._regions:
            region.rows[:, -(-n // 8) * 8 * region.position_bytes :] = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf.write(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", "Q8_0", context_length=512
    )
    model = Model.open(path, threads=2)
    yield model
    model.close()


def with_checkpoints(model: Model) -> tuple[Session, Checkpoints]:
    session = model.session(n_ctx=256)
    memory = session.pipeline.memory = Checkpoints(session.pipeline.memory)  # type: ignore[assignment]
    return session, memory


def test_a_prompt_is_computed_from_the_rewound_position(model: Model) -> None:
    (session, memory), fresh = with_checkpoints(model), model.session(n_ctx=256)
    session.prefill(IDS[:100])
    prompt = [*IDS[:75], *IDS[150:190]]
    done = session.prefill(prompt)
    assert memory.asked == [75]
    assert (done.reused, done.fed) == (64, len(prompt) - 64)
    assert session.tokens == prompt
    fresh.prefill(prompt)
    assert session.feed([7]).tobytes() == fresh.feed([7]).tobytes()


def test_truncating_returns_the_remaining_length(model: Model) -> None:
    session, _ = with_checkpoints(model)
    session.feed(IDS[:100])
    assert session.truncate(120) == 100
    assert session.truncate(90) == 80
    assert session.length == 80
    assert session.truncate(0) == 0


def test_temporary_tokens_change_no_later_reply(model: Model) -> None:
    (session, _), fresh = with_checkpoints(model), model.session(n_ctx=256)
    for replying in (session, fresh):
        replying.prefill(IDS[:50])
    with session.restoring():
        session.feed(IDS[50:90])
    assert session.tokens == IDS[:50]
    replies = [
        [piece.token_id for piece in replying.generate(Sampling.greedy(), 8)]
        for replying in (session, fresh)
    ]
    assert replies[0] == replies[1]


def test_a_conversation_is_not_shifted_if_a_layer_cannot(model: Model) -> None:
    session, _ = with_checkpoints(model)
    session.feed(IDS[:100])
    assert session.shift_towards([*IDS[:20], *IDS[40:100], 5]) == 0
    with pytest.raises(EngineError, match="cannot forget these tokens from the midst"):
        session.shift(20, 20)
    assert session.tokens == IDS[:100]


def test_a_cancelled_feed_rewinds_the_memory(model: Model) -> None:
    session, memory = with_checkpoints(model)
    session.feed(IDS[:40])
    memory.asked.clear()

    def cancel(done: int, total: int) -> None:
        session.cancel()

    session.pipeline.block_size_at = lambda pos: 16  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        session.feed(IDS[40:120], on_progress=cancel)
    assert memory.asked == [session.length]


@pytest.mark.parametrize("kv", KV_TYPES)
def test_layers_of_different_shapes_are_shifted_and_saved(tmp_path: Path, kv: str) -> None:
    model = Model.open(
        VARIANTS["llama, no layer like another"].tiny(head_dim=32).write(tmp_path / "m.gguf"),
        threads=1,
    )
    session, restored, fresh = (model.session(n_ctx=128, kv=kv) for _ in range(3))
    session.feed(IDS[:70])
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60), saving.problem
    saving.close()
    assert restore_state(restored, tmp_path / "kv.state", session.tokens).tokens == 70
    assert restored.feed([5]).tobytes() == session.feed([5]).tobytes()
    for shifted in (session, restored):
        shifted.shift(10, 20)
    assert restored.feed([5]).tobytes() == session.feed([5]).tobytes()
    with fresh.restoring():
        fresh.feed(IDS[:16])
        fill_cache(fresh, 96)
    assert session.kv_bytes == memory_needs(model.config, KV_TYPES[kv]).bytes_for(128)
    model.close()


def test_memory_needs_are_sums_over_layers_plus_a_fixed_part(tmp_path: Path) -> None:
    model = Model.open(
        VARIANTS["llama, no layer like another"].tiny().write(tmp_path / "m.gguf"), threads=1
    )
    assert memory_needs(model.config, KV_TYPES["f16"]) == MemoryNeeds(2 * 2 * 16 * (2 + 4 + 1))
    needs = memory_needs(model.config, KV_TYPES["f16"]) + MemoryNeeds(0, 1000)
    assert needs.bytes_for(10) == 10 * 448 + 1000
    assert needs.largest_context(needs.bytes_for(64)) == 64
    assert needs.largest_context(needs.bytes_for(64) - 1) == 56
    assert needs.largest_context(500) == 0
    model.close()


def test_keys_and_values_are_a_layer_memory(model: Model) -> None:
    rotations = model.session(n_ctx=8).rotations
    memory = KVCache(model.config, kv_type_of("f16", model.config), 16, rotations)
    assert memory.rewind(3) == 3
    assert memory.copied_bytes(0, 3) == memory.copied_bytes(0, 8) == memory.n_bytes // 2


@pytest.mark.parametrize("kv", KV_TYPES)
def test_numpy_packs_keys_as_the_kernels_do(tmp_path: Path, kv: str) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", head_dim=32), threads=1)
    session = model.session(n_ctx=64, kv=kv)
    session.feed(IDS[:48])
    cache = session.memory
    assert isinstance(cache, KVCache)
    stored = np.empty(cache.copied_bytes(0, 48), np.uint8)
    repacked = np.empty_like(stored)
    cache.copy_out(0, 48, stored)
    for layer in cache.layers.values():
        layer.keys.write_tiles(0, layer.keys.read_tiles(0, 48))
    cache.copy_out(0, 48, repacked)
    assert stored.any()
    assert (stored == repacked).all()
    model.close()

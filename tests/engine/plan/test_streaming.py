"""A dense model larger than memory: some matrices are prefetched and dropped, the others stay."""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.kernels.records import MATMUL, STREAM
from engine.machine.residency import resident_bytes
from engine.plan.plan import Plan
from tests.engine import tiny_gguf
from tests.engine.kernel_call import map_of_a_dropped_file, run, words
from tests.engine.refusals import check

N_CTX = 64
IDS = np.random.default_rng(1).integers(3, 200, 40).tolist()


def logits(model: Model) -> np.ndarray:
    """Return the logits of a prompt in a block, of a few tokens, and of single ones."""
    session = model.session(n_ctx=N_CTX)
    rows = []
    for begin, end in ((0, 32), (32, 36), (36, 37), (37, 38)):
        rows.append(session.feed(IDS[begin:end], all_logits=end > 32))
    return np.vstack(rows)


def with_room_for(
    share: float, path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Path, int, int]]:
    """Make memory for a share of a file, half of it not yet loaded; return the bytes read first."""
    places: list[tuple[Path, int, int]] = []
    room = round(share * path.stat().st_size)
    monkeypatch.setattr("engine.model.RESERVE_BYTES", 0)
    bring = Model.bring_weights_in
    monkeypatch.setattr(Model, "bring_weights_in", lambda self, other_bytes=0: bring(self))
    monkeypatch.setattr("engine.weights.weights.Weights.resident_share", lambda self: 0.5)
    monkeypatch.setattr("engine.weights.weights._share_in_memory", lambda views: 0.5)
    monkeypatch.setattr("engine.machine.host.available_memory_bytes", lambda: room)
    monkeypatch.setattr(
        "engine.machine.residency.read_in_order", lambda ranges, tell: places.extend(ranges)
    )
    return places


def plans_of(model: Model) -> dict[str, Plan]:
    """Return the plans of a session, not compiled."""
    kv_type = KV_TYPES["f16"]
    model.bring_weights_in(memory_needs(model.config, kv_type).bytes_for(N_CTX))
    return model._pipeline(kv_type, N_CTX).plans


def sizes_of(plan: Plan, word: str) -> dict[int, int]:
    """Return the bytes that rows prefetch or drop, by address; each matrix once."""
    rows = [
        operation.arguments
        for operation in plan.operations
        if operation.record is STREAM and operation.arguments.get(f"{word}_bytes")
    ]
    sizes = {row[word]: row[f"{word}_bytes"] for row in rows}
    assert len(sizes) == len(rows)
    return sizes


def test_streamed_weights_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", n_layers=4)
    fits = Model.open(path, threads=2)
    expected = logits(fits)
    fits.close()
    loaded = with_room_for(0.7, path, monkeypatch)
    model = Model.open(path, threads=2)
    assert logits(model).tobytes() == expected.tobytes()
    streamed = [model._weights[name] for name in model._weights.streamed]
    n_bytes = sum(tensor.size_bytes for tensor in streamed)
    excess = 0.3 * model._weights.memory_bytes
    assert excess <= n_bytes <= excess + 4 * max(tensor.size_bytes for tensor in streamed)
    assert sum(
        end - first for _, first, end in loaded
    ) <= path.stat().st_size - n_bytes + 2 * mmap.PAGESIZE * len(loaded)
    plans = model._sessions[0].pipeline.plans
    sizes = {tensor.address: tensor.size_bytes for tensor in streamed}
    assert sizes_of(plans["decode"], "next") == sizes_of(plans["decode"], "last") == sizes
    assert all(sizes_of(plan, "next") == sizes_of(plan, "last") for plan in plans.values())
    model.close()


def test_a_matrix_is_prefetched_and_dropped_after_a_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", n_layers=4)
    with_room_for(0.5, path, monkeypatch)
    model = Model.open(path)
    for plan in plans_of(model).values():
        rows = plan.operations
        for tensor in (model._weights[name] for name in model._weights.streamed):
            uses = [
                i
                for i, row in enumerate(rows)
                if row.record is MATMUL and row.weight and row.weight.name == tensor.name
            ]
            prefetched, dropped = (
                [
                    i
                    for i, row in enumerate(rows)
                    if row.record is STREAM and row.arguments.get(word) == tensor.address
                ]
                for word in ("next", "last")
            )
            assert len(prefetched) == len(dropped) == bool(uses)
            if uses:
                assert prefetched[0] < uses[0]
                assert any(row.barrier for row in rows[uses[-1] : dropped[0]])
    model.close()


def test_weights_in_memory_are_not_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    places = with_room_for(1.1, path, monkeypatch)
    model = Model.open(path)
    assert not any("stream" in plan.kernels() for plan in plans_of(model).values())
    assert places == model._weights.places
    with_room_for(0.5, path, monkeypatch)
    monkeypatch.setattr("engine.weights.weights.Weights.resident_share", lambda self: 1.0)
    assert not any("stream" in plan.kernels() for plan in plans_of(model).values())
    model.close()


@pytest.mark.parametrize("room", [0, 100_000, 200_000])
def test_streamed_weights_are_spread_evenly_over_layers(room: int, tmp_path: Path) -> None:
    weights = check(tiny_gguf.write(tmp_path / "m.gguf", n_layers=8))
    weights.fit_into(room)
    layers = [name.split(".")[1] for name in weights.streamed]
    assert all(name.startswith("blk.") and weights[name].n_rows > 1 for name in weights.streamed)
    assert set(layers) == set("01234567")
    weights.fit_into(weights.memory_bytes + (1 << 20), 1 << 30)  # the cache may never be full
    assert not weights.streamed
    assert not weights.exceeds_memory


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops mapped pages when told")
def test_the_kernel_drops_one_range_and_prefetches_another(tmp_path: Path) -> None:
    n_bytes = 1 << 20
    view = map_of_a_dropped_file(tmp_path / "two", 2 * n_bytes)
    view[:n_bytes].sum()
    halves = view[:n_bytes], view[n_bytes:]
    record = words(STREAM, last=halves[0], last_bytes=n_bytes, next=halves[1], next_bytes=n_bytes)
    deadline = time.monotonic() + 60
    # A page that another core has just read may be dropped only by the next call.
    while time.monotonic() < deadline:
        run("stream", record, 2)
        if (resident_bytes(view[:n_bytes]) or 0) < n_bytes // 8 and resident_bytes(
            view[n_bytes:]
        ) == n_bytes:
            return
        time.sleep(0.01)
    pytest.fail("the pages stayed, or were not read")

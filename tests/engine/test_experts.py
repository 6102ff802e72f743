"""Experts: how they are chosen, that grouping and fusing change no bit, and what a token reads of
them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.errors import BrokenModelError
from engine.kernels.records import CHOOSE, GROUP, PREFETCH, SCORES, STEP
from engine.machine.residency import resident_bytes
from engine.measure.fit import needs_of_file
from engine.plan.operation import float_bits
from engine.weights.weights import Weights
from tests.engine import tiny_gguf
from tests.engine.architectures import KINDS
from tests.engine.architectures.rows import ROWS
from tests.engine.kernel_call import map_of_a_dropped_file, run, words
from tests.engine.reference import Twin
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

NAN = float("nan")
INF = float("inf")
QWEN3MOE = ROWS["qwen3moe"]


def call(name: str, record: Any, values: dict[str, int], n_threads: int = 2) -> None:
    """Run a kernel with a record of these words."""
    run(name, words(record, **values), n_threads)


def chosen(
    logits: list[list[float]], n_used: int, bias: list[float] | None = None, **words: int
) -> Any:
    """Return the ids and weights of each token's experts."""
    x = np.array(logits, np.float32)
    n_experts = len(logits[0])
    added = None if bias is None else np.array(bias, np.float32)
    step = np.zeros(4, np.int64)
    scratch = np.zeros((2, 4 * n_experts), np.float32)
    step[STEP.n_tokens // 8] = len(x)
    ids = np.full((len(x), n_used), -1, np.int32)
    weights = np.zeros((len(x), n_used), np.float32)
    fixed = {
        "step": step.ctypes.data, "logits": x.ctypes.data,
        "bias": 0 if added is None else added.ctypes.data,
        "n_experts": n_experts, "n_used": n_used, "scale": float_bits(1.0), "n_groups": 1,
        "n_groups_used": 1,
        "ids": ids.ctypes.data, "weights": weights.ctypes.data, "scratch": scratch.ctypes.data,
        "scratch_bytes": scratch.strides[0],
    }  # fmt: skip
    call("choose experts", CHOOSE, {**fixed, **words})
    return ids.tolist(), weights


def test_of_equal_scores_the_lower_index_is_chosen_first() -> None:
    ids, weights = chosen([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0] * 5, [-1.0, -1.0, 5.0, -1.0, -1.0]], 3)
    assert ids == [[1, 2, 4], [0, 1, 2], [2, 0, 1]]
    assert weights[1] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize(
    "row", [[NAN] * 6, [NAN, 1.0, NAN, 2.0, 3.0, 0.0], [INF] * 6, [-INF] * 6, [1e38] * 6]
)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("score", SCORES)
def test_chosen_experts_exist_and_differ_whatever_the_scores(
    row: list[float], groups: int, score: str
) -> None:
    words = {"score": SCORES.index(score), "n_groups": groups, "n_groups_used": min(2, groups)}
    ids, _ = chosen([row, row[::-1]], 4, bias=row, **words)
    assert all(len(set(choice)) == 4 and set(choice) <= set(range(6)) for choice in ids)


def test_scores_that_are_no_numbers_make_weights_that_are_none() -> None:
    for score in range(len(SCORES)):
        _, weights = chosen([[0.0, NAN, 0.0]], 3, score=score)
        assert np.isnan(weights).any()


def test_a_bias_decides_the_choice_and_not_the_weights() -> None:
    ids, weights = chosen(
        [[0.0, 1.0, 2.0, 3.0]], 2, bias=[9.0, 0.0, 0.0, 5.0], score=SCORES.index("sigmoid")
    )
    assert ids == [[0, 3]]
    assert weights[0] == pytest.approx([0.5, 1 / (1 + np.exp(-3.0))])


def test_groups_are_chosen_by_their_two_best() -> None:
    rows = [[9.0, 0.0, 5.0, 5.0, 6.0, 2.0], [1.0, 1.0, 1.0, 1.0, 0.0, 9.0]]
    words = {"n_groups": 3, "n_groups_used": 1, "score": SCORES.index("softmax of chosen")}
    assert chosen(rows, 2, **words)[0] == [[2, 3], [5, 4]]
    assert chosen(rows, 2, **{**words, "n_groups_used": 2})[0] == [[0, 2], [5, 0]]


def test_weights_are_divided_by_their_sum_and_multiplied() -> None:
    _, weights = chosen([[0.0, 1.0, 2.0]], 2, renormalised=1, scale=float_bits(2.5))
    assert weights[0] == pytest.approx(2.5 * np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum())
    _, weights = chosen([[-40.0, -41.0]], 1, renormalised=1, score=SCORES.index("sigmoid"))
    assert weights[0] == pytest.approx([np.exp(-40.0) * 2**14])


def test_slots_are_one_per_choice_and_grouped_by_expert() -> None:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(7)[:3] for _ in range(10)]).astype(np.int32)
    slots = np.zeros_like(ids)
    table = np.zeros((8, 8), np.int64)
    scratch = np.zeros(7, np.int64)
    step = np.zeros(4, np.int64)
    claims = np.ones((3, 7, 2, 8), np.int64)
    step[STEP.n_tokens // 8] = len(ids)
    call("group tokens", GROUP, {
        "step": step.ctypes.data, "ids": ids.ctypes.data, "n_experts": 7, "n_used": 3,
        "slots": slots.ctypes.data,
        "table": table.ctypes.data, "pad": 4, "scratch": scratch.ctypes.data,
        "claims": claims.ctypes.data,
        "claims_bytes": claims.strides[1], "n_claims": 3, "row_claims_bytes": claims.strides[0],
    })  # fmt: skip
    used = sorted(set(ids.ravel().tolist()))
    assert table[0, 0] == len(used)
    next_free = 0
    for index, expert in enumerate(used):
        n_tokens, number, first = table[index + 1, [0, 4, 5]].tolist()
        assert (number, first) == (expert, next_free)
        assert slots[ids == expert].tolist() == list(range(first, first + n_tokens))
        next_free = first + -(-n_tokens // 4) * 4
    assert not claims[:, : len(used), :, 0].any()


def feed(path: Path, n_tokens: list[int], threads: int = 2) -> np.ndarray:
    """Return the logits of all tokens, fed in blocks of these sizes."""
    ids = np.random.default_rng(6).integers(3, 250, sum(n_tokens)).tolist()
    model = Model.open(path, threads=threads)
    session = model.session(n_ctx=128, kv="f32")
    rows = []
    for n in n_tokens:
        rows.append(session.feed(ids[:n], all_logits=True))
        ids = ids[n:]
    model.close()
    return np.vstack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_K"])
def test_how_a_prompt_is_cut_into_blocks_changes_no_bit(quant: str, tmp_path: Path) -> None:
    path = QWEN3MOE.tiny(n_experts=40, n_used=8, n_layers=1, quant=quant).write(tmp_path / "m.gguf")
    expected = feed(path, [90])
    assert feed(path, [31, 5, 16, 38], threads=3).tobytes() == expected.tobytes()
    assert nmse(feed(path, [1] * 9 + [3, 2, 4]), expected[:18]) < (1e-9 if quant == "F32" else 1e-4)


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0"])
def test_widths_with_a_rest_change_no_bit_in_blocks_or_tokens(quant: str, tmp_path: Path) -> None:
    path = QWEN3MOE.tiny(
        n_used=3, expert_dim=288, quant=quant, n_layers=1, dim=320, head_dim=80
    ).write(tmp_path / "m.gguf")
    assert feed(path, [23, 9, 5], threads=3).tobytes() == feed(path, [37]).tobytes()
    model = Model.open(path, threads=3)
    session = model.session(n_ctx=64, kv="f32")
    single = np.stack([session.feed([token]) for token in IDS[:8]])
    session.truncate(0)
    assert session.verify(IDS[:8]).tobytes() == single.tobytes()
    assert nmse(single, QWEN3MOE.logits(Twin(model._file), IDS[:8])) < 1e-3
    model.close()


def test_gate_and_up_in_one_tensor_compute_the_same(tmp_path: Path) -> None:
    fused = QWEN3MOE.tiny(is_fused=True)
    split = QWEN3MOE.tiny()
    for number in range(2):
        gate, up = (split.tensor(f"blk.{number}.ffn_{name}_exps.weight") for name in ("gate", "up"))
        matrices = [np.frombuffer(entry.data, "<f4").reshape(6, 64, 64) for entry in (gate, up)]
        fused.tensor(f"blk.{number}.ffn_gate_up_exps.weight").data = np.concatenate(
            matrices, axis=1
        ).tobytes()
        fused.tensor(f"blk.{number}.ffn_down_exps.weight").data = split.tensor(
            f"blk.{number}.ffn_down_exps.weight"
        ).data
        fused.tensor(f"blk.{number}.ffn_gate_inp.weight").data = split.tensor(
            f"blk.{number}.ffn_gate_inp.weight"
        ).data
    logits = [feed(entry.write(tmp_path / "m.gguf"), [12, 1, 3]) for entry in (fused, split)]
    assert logits[0].tobytes() == logits[1].tobytes()


def test_a_token_reads_the_experts_it_uses_and_no_others(tmp_path: Path) -> None:
    few, all_of_them = (
        Model.open(QWEN3MOE.tiny(n_used=n).write(tmp_path / f"{n}.gguf")) for n in (2, 6)
    )
    slabs = sum(
        tensor.size_bytes for name, tensor in few._weights.tensors.items() if "_exps." in name
    )
    assert slabs > few.weights_bytes // 4
    assert all_of_them.bytes_per_token - few.bytes_per_token == slabs * 4 // 6
    needs = needs_of_file(few.path)
    assert needs.bytes_per_token + 4 * few.config.dim == few.bytes_per_token  # the embedding's row
    assert needs.weights_bytes == needs_of_file(all_of_them.path).weights_bytes
    n_products = sum(needs_of_file(all_of_them.path).products.values()) - sum(
        needs.products.values()
    )
    assert n_products == slabs // 4 * 4 // 6
    rows = [row for row in few.describe_plan() if "experts" in row]
    assert len(rows) == 2 * 3
    assert sum(row["bytes"] for row in rows) == slabs * 2 // 6
    for model in (few, all_of_them):
        model.close()


@pytest.mark.parametrize("name", ["ffn_gate_inp", "ffn_down_exps", "ffn_up_exps"])
def test_a_damaged_expert_or_router_ends_the_reply_in_one_line(name: str, tmp_path: Path) -> None:
    described = QWEN3MOE.tiny()
    described.fill(f"blk.1.{name}.weight", NAN)
    model = Model.open(described.write(tmp_path / "m.gguf"))
    session = model.session(n_ctx=64)
    for ids in (IDS, IDS[:1], IDS[:3]):
        with pytest.raises(BrokenModelError, match="its weights are damaged"):
            session.feed(ids)
        assert session.length == 0
    model.close()


def test_a_nan_router_is_one_error_line_in_every_kind_of_layer(tmp_path: Path) -> None:
    seen = []
    for name in KINDS:
        described = tiny_gguf.model(name)
        routers = [
            str(tensor.name)
            for tensor in described.tensors
            if str(tensor.name).endswith("ffn_gate_inp.weight")
        ]
        if routers:
            seen.append(name)
            described.fill(routers[-1], NAN)
            model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
            session = model.session(n_ctx=32)
            for ids in (IDS, IDS[:1]):
                with pytest.raises(BrokenModelError, match="its weights are damaged"):
                    session.feed(ids)
            assert session.length == 0
            model.close()
    assert {"gpt-oss", "lfm2moe", "deepseek2"} <= set(seen)


@pytest.mark.parametrize("key", ["ffn_up_exps.bias", "ffn_gate_inp.bias", "attn_sinks.weight"])
def test_biases_and_sinks_that_are_no_numbers_are_refused(key: str, tmp_path: Path) -> None:
    described = tiny_gguf.model("gpt-oss")
    described.fill(f"blk.1.{key}", INF)
    assert f"tensor blk.1.{key} holds NaN" in refusal(described.write(tmp_path / "model.gguf"))


def test_a_saved_state_a_fork_and_the_way_back_change_no_bit(tmp_path: Path) -> None:
    model = Model.open(QWEN3MOE.tiny().write(tmp_path / "m.gguf"), threads=2)
    session, fresh = (model.session(n_ctx=64) for _ in range(2))
    first = session.feed(IDS, all_logits=True)
    session.truncate(9)
    assert session.feed(IDS[9:], all_logits=True).tobytes() == first[9:].tobytes()
    forked = [*IDS[:9], *IDS[:6]]
    session.prefill(forked)
    fresh.prefill(forked)
    assert (
        session.feed(IDS[:3], all_logits=True).tobytes()
        == fresh.feed(IDS[:3], all_logits=True).tobytes()
    )
    assert nmse(first, QWEN3MOE.logits(Twin(model._file), IDS)) < 1e-6
    model.close()


@pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="the system cannot be told to drop a file from memory"
)
def test_chosen_experts_are_read_ahead_and_no_others(tmp_path: Path) -> None:
    n_experts = 16
    n_bytes = (1 << 20) + 500
    view = map_of_a_dropped_file(tmp_path / "slab", n_experts * n_bytes)
    table = np.zeros((3, 8), np.int64)
    slabs = np.array([[view.ctypes.data, n_bytes]])
    table[1:, 4] = (3, 9)
    table[:, 0] = 2
    call(
        "prefetch experts",
        PREFETCH,
        {"table": table.ctypes.data, "slabs": slabs.ctypes.data, "n_slabs": 1},
    )
    deadline = time.monotonic() + 60
    while (resident_bytes(view) or 0) < 2 * n_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 2 * n_bytes <= (resident_bytes(view) or 0) < 4 * n_bytes


def test_a_model_larger_than_memory_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = QWEN3MOE.tiny().write(tmp_path / "m.gguf")
    expected = feed(path, [12, 1, 3])
    monkeypatch.setattr("engine.weights.weights.Weights.resident_share", lambda self: 0.5)
    monkeypatch.setattr(
        "engine.machine.residency.read_in_order", lambda *arguments: pytest.fail("read whole")
    )
    check = Weights.check

    def check_of_a_large_file(*arguments: Any) -> Weights:
        weights = check(*arguments)
        weights.places = [(path, 0, 1 << 40)]
        return weights

    monkeypatch.setattr(Weights, "check", check_of_a_large_file)
    assert feed(path, [12, 1, 3]).tobytes() == expected.tobytes()
    model = Model.open(path)
    session = model.session(n_ctx=16)
    rows = [operation.kernel for operation in session.pipeline.plans["decode"].operations]
    assert rows.count("prefetch experts") == model.config.n_layers
    model.close()

"""The plan as data: rows of a plan; listing them compiles nothing."""

from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.loader import validate
from engine.machine.memory import Memory
from engine.plan.buffers import Activations
from engine.plan.dequantise import run_operations
from engine.plan.plan import Plan
from engine.quants.base import QUANT_TYPES
from tests.engine import tiny_gguf

PHASES = [
    "embedding",
    "norms",
    "qkv",
    "attention",
    "attention output",
    "feed-forward",
    "output head",
]


def test_a_plan_names_every_matrix_once_and_in_order(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=2)
    rows = model.describe_plan()
    read = [row["weights"] for row in rows if row["op"].startswith("matvec")]
    expected = [
        f"blk.{layer}.{name}.weight"
        for layer in range(2)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    assert read == [*expected, "output.weight"]
    assert {row["threads"] for row in rows} == {2}
    model.close()


def test_the_bytes_of_a_plan_equal_those_that_a_token_reads(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    read = sum(row.get("bytes", 0) for row in model.describe_plan())
    vectors = sum(t.size_bytes for t in model._file.weights.tensors.values() if t.n_rows == 1)
    assert read == model.bytes_per_token - vectors
    model.close()


def test_phases_follow_the_order_of_computation(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    assert list(dict.fromkeys(row["phase"] for row in model.describe_plan())) == PHASES
    model.close()


def test_activations_are_quantised_once_for_all_readers(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "llama", "Q8_0"), threads=1)
    names = [row["op"] for row in model.describe_plan()]
    form = f"quantize {QUANT_TYPES['Q8_0'].form('matvec')}"
    assert names.count(form) == 2 * 4 + 1
    model.close()


@pytest.mark.parametrize(("columns", "counts"), [(8, (7, 3)), (8, (2, 8)), (32, (20, 9))])
def test_rows_may_have_their_own_number_of_tokens(
    columns: int, counts: tuple[int, int], tmp_path: Path
) -> None:
    """Experts get some of the tokens; the rows before and after them get all tokens."""
    weights = validate(tiny_gguf.write(tmp_path / "m.gguf", "llama", "Q8_0")).weights
    matrix = weights["blk.0.ffn_gate.weight"]
    scratch = Memory(MATMUL_SCRATCH_BYTES)
    x, gathered, output, gathered_output = (
        Activations(str(n), n, columns) for n in (64, 64, 96, 96)
    )
    x.array()[:] = gathered.array()[:] = np.random.default_rng(0).standard_normal(x.array().shape)
    steps = [Memory(128) for _ in counts]
    for step, n_tokens in zip(steps, counts, strict=True):
        step.array(np.int64, (16,))[STEP.n_tokens // 8] = n_tokens
    plan = Plan(steps[0].address, columns, (scratch.address, MATMUL_SCRATCH_BYTES))
    plan.quantize(x, matrix)
    plan.matmul(matrix, x, output)
    with plan.counted_by(steps[1].address):
        plan.quantize(gathered, matrix)
        plan.matmul(matrix, gathered, gathered_output)
    plan.matmul(matrix, x, output)
    run_operations(plan)
    n_common = min(counts)
    assert (output.array()[:n_common] == gathered_output.array()[:n_common]).all()
    for out, n_tokens in zip((output, gathered_output), counts, strict=True):
        assert out.array()[:n_tokens].any(axis=1).all()
        assert not out.array()[n_tokens:].any()


@pytest.mark.parametrize("is_normed", [False, True])
def test_a_product_adds_its_branch_if_nothing_is_between(is_normed: bool, tmp_path: Path) -> None:
    weights = validate(tiny_gguf.write(tmp_path / "m.gguf", biases=True)).weights
    matrix = weights["blk.0.attn_q.weight"]
    bias = weights["blk.0.attn_q.bias"]
    norm = weights["blk.0.attn_norm.weight"] if is_normed else None
    expected = None
    for is_fused in (True, False):
        step = Memory(128)
        scratch = Memory(MATMUL_SCRATCH_BYTES)
        step.array(np.int64, (16,))[STEP.n_tokens // 8] = 3
        x, read, branch = (Activations(name, 64, 8) for name in ("x", "read", "branch"))
        x.array()[:3], read.array()[:3] = np.random.default_rng(0).standard_normal((2, 3, 64))
        plan = Plan(step.address, 8, (scratch.address, MATMUL_SCRATCH_BYTES))
        if is_fused:
            plan.barrier()
        plan.matmul(matrix, read, branch)
        plan.add(x, branch, norm, 1e-5)
        names = [row["op"] for row in plan.describe()]
        assert ("add" in names) == (not is_fused and not is_normed)
        assert ("add normed" in names) == is_normed
        run_operations(plan)
        expected = x.array().copy() if expected is None else expected
        assert np.allclose(x.array(), expected, rtol=1e-6, atol=1e-6)
    # A product adds only one branch and must not overwrite values that other rows read.
    for source, its_bias in ((read, bias), (x, None)):
        plan.barrier()
        plan.matmul(matrix, source, branch, its_bias)
        plan.add(x, branch)
        assert plan.describe()[-1]["op"] == "add"


def test_no_prefill_kernel_needs_more_scratch_than_a_thread_gets() -> None:
    from engine.kernels.tiles import MAX_TOKENS, SCRATCH_BYTES
    from engine.plan.buffers import MAX_BLOCK_TOKENS

    assert SCRATCH_BYTES <= MATMUL_SCRATCH_BYTES
    assert MAX_BLOCK_TOKENS <= MAX_TOKENS

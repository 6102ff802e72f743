"""The plan as data: what it lists, and that it needs nothing compiled to list it."""

from pathlib import Path

from engine import Model
from engine.records import MATMUL_SCRATCH_BYTES
from tests.engine import tiny_gguf

PHASES = ["embedding", "norms", "qkv", "attention", "attention output", "feed-forward", "output head"]


def test_a_plan_names_every_matrix_once_and_in_order(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=2)
    rows = model.describe_plan()
    read = [row["weights"] for row in rows if row["op"].startswith("matvec")]
    wanted = [
        f"blk.{layer}.{name}.weight"
        for layer in range(2)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    assert read == [*wanted, "output.weight"]
    assert {row["threads"] for row in rows} == {2}
    model.close()


def test_the_bytes_of_a_plan_are_the_bytes_a_token_reads(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    read = sum(row.get("bytes", 0) for row in model.describe_plan())
    vectors = sum(t.size_bytes for t in model._checked.weights.tensors.values() if t.n_rows == 1)
    assert read == model.bytes_per_token - vectors
    model.close()


def test_phases_come_in_the_order_of_the_computation(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    assert list(dict.fromkeys(row["phase"] for row in model.describe_plan())) == PHASES
    model.close()


def test_activations_are_quantised_once_for_all_their_readers(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "llama", "Q8_0"), threads=1)
    names = [row["op"] for row in model.describe_plan()]
    assert names.count("quantize q8_0") == 2 * 4 + 1
    model.close()


def test_no_prefill_kernel_needs_more_scratch_than_a_thread_gets() -> None:
    from engine.kernels.tiles import MAX_TOKENS, SCRATCH_BYTES
    from engine.pipeline import WIDEST_BLOCK

    assert SCRATCH_BYTES <= MATMUL_SCRATCH_BYTES
    assert WIDEST_BLOCK <= MAX_TOKENS

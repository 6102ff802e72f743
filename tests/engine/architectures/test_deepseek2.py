"""Architecture deepseek2: twin, tiny model, latent attention and its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.saved_state import StateWriter, restore_state
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_attention
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

RANK = 32
TURNED = 32
PLAIN = 32
VALUE = 16
N_HEADS = 4
KEYS = {
    "attention.head_count_kv": 1, "attention.key_length": RANK + TURNED,
    "attention.value_length": RANK,
    "attention.kv_lora_rank": RANK, "attention.key_length_mla": PLAIN + TURNED,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": TURNED, "expert_feed_forward_length": 64, "expert_shared_count": 2,
    "leading_dense_block_count": 1,
}  # fmt: skip
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}  # fmt: skip
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}


def tiny(
    *, query_rank: int = 0, keys: dict[str, Any] | None = None, quant: str = "F32", **arguments: Any
) -> Any:
    """Return a model whose queries are projected from the token, or from ``query_rank`` numbers of
    it; ``keys`` are added to the usual keys."""
    wide = 256 if quant.endswith("_K") else RANK  # all rows are whole blocks
    arguments = {"vocabulary": "bpe", "n_heads": N_HEADS, **arguments, "n_kv_heads": 1}
    described = tiny_gguf.decoder("deepseek2", quant, **arguments)
    n_heads = arguments["n_heads"]
    dim = described.value("deepseek2.embedding_length")
    rng = np.random.default_rng(1)
    described.with_experts(first=1, choice_biases=bool(keys), shared_dim=128)
    for name, value in {**KEYS, **(keys or {})}.items():
        described.set(f"deepseek2.{name}", value)
    if wide > RANK:
        described.set("deepseek2.attention.kv_lora_rank", wide)

    def matrix(name: str, rows: int, cols: int, n: int = 1) -> None:
        entry = tiny_gguf.quantised(
            name, quant if cols % wide == 0 else "Q8_0", n * rows, cols, cols**-0.5, rng
        )
        entry.dims = [cols, rows, n] if n > 1 else [cols, rows]
        described.tensors.append(entry)

    for number in range(described.value("deepseek2.block_count")):
        block = f"blk.{number}."
        described.drop_tensors(
            *(f"{block}attn_{name}.weight" for name in ("q", "k", "v", "output"))
        )
        q_dim = n_heads * (PLAIN + TURNED)
        if query_rank:
            matrix(block + "attn_q_a.weight", query_rank, dim)
            described.add_vector(
                block + "attn_q_a_norm.weight", 1 + 0.1 * rng.standard_normal(query_rank)
            )
            matrix(block + "attn_q_b.weight", q_dim, query_rank)
        else:
            matrix(block + "attn_q.weight", q_dim, dim)
        matrix(block + "attn_kv_a_mqa.weight", wide + TURNED, dim)
        described.add_vector(block + "attn_kv_a_norm.weight", 1 + 0.1 * rng.standard_normal(wide))
        matrix(block + "attn_k_b.weight", wide, PLAIN, n_heads)
        matrix(block + "attn_v_b.weight", VALUE, wide, n_heads)
        matrix(block + "attn_output.weight", dim, n_heads * VALUE)
    if query_rank:
        described.set("deepseek2.attention.q_lora_rank", query_rank)
    return described


def attention(twin: Twin, block: str, h: Array) -> Array:
    """Return attention whose keys and values are products with the latent vector, rounded in the
    same order as in the engine."""
    n = len(h)
    rank = twin.key("attention.kv_lora_rank")
    n_heads = twin.key("attention.head_count")
    plain = twin.key("attention.key_length_mla") - twin.key("rope.dimension_count")
    value = twin.key("attention.value_length_mla")
    if twin.tensor(block + "attn_q_a.weight") is None:
        q = twin.project(h, block + "attn_q").reshape(n, n_heads, -1)
    else:
        inner = twin.norm(twin.project(h, block + "attn_q_a"), block + "attn_q_a_norm")
        q = twin.project(inner, block + "attn_q_b").reshape(n, n_heads, -1)
    compressed = twin.project(h, block + "attn_kv_a_mqa")
    latent = twin.norm(compressed[:, :rank], block + "attn_kv_a_norm")
    turned = compressed[:, None, rank:]
    scale = twin.key("attention.key_length_mla") ** -0.5
    turn = twin.turner(neighbours=True)
    if twin.key("rope.scaling.type") == "yarn":
        stretch = np.log(twin.key("rope.scaling.factor"))
        multiplier = twin.key("rope.scaling.yarn_log_multiplier")
        # which YaRN has elsewhere
        magnitude = (1 + 0.1 * stretch) / (1 + 0.1 * multiplier * stretch)
        stretched = twin.yarn_turner(neighbours=True)
        scale = scale * (1 + multiplier * stretch) ** 2
        turn = lambda heads: stretched(heads) / magnitude  # noqa: E731
    key = turn(turned)
    keys = [slice(head * rank, (head + 1) * rank) for head in range(n_heads)]
    absorbed = [
        twin.project(q[:, head, :plain], block + "attn_k_b", rows) for head, rows in enumerate(keys)
    ]
    queries = np.concatenate([np.stack(absorbed, 1), turn(q[..., plain:])], -1) * scale
    attended = causal_attention(
        queries, np.concatenate([latent[:, None], key], -1), latent[:, None]
    )
    values = [
        twin.project(attended[:, head], block + "attn_v_b", slice(head * value, (head + 1) * value))
        for head in range(n_heads)
    ]
    return twin.project(np.concatenate(values, -1), block + "attn_output")


def logits(twin: Twin, ids: list[int]) -> Array:
    score = {2: "sigmoid"}.get(twin.key("expert_gating_func", 1), "softmax")

    def feed_forward(block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        weights = twin.routes(
            block, h, score=score, is_renormalised=twin.key("expert_weights_norm", False),
            scale=twin.key("expert_weights_scale", 1.0),
        )  # fmt: skip
        return twin.experts(block, h, weights) + twin.shared_expert(block, h)

    return twin.head(
        twin.pre_norm_layers(
            twin.embed(ids), lambda *arguments: attention(twin, *arguments), feed_forward
        )
    )


def test_query_rank_yarn_and_sigmoid_router_equal_the_numpy_twin(tmp_path: Path) -> None:
    model = Model.open(
        tiny(query_rank=64, keys={**YARN, **SIGMOID}).write(tmp_path / "m.gguf"), threads=2
    )
    session = model.session(n_ctx=64, kv="f32")
    expected = logits(Twin(model._file), IDS)
    assert nmse(session.feed(IDS, all_logits=True), expected) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), expected) < 1e-9
    model.close()


def test_absorbed_queries_score_as_separate_keys_would(tmp_path: Path) -> None:
    model = Model.open(tiny().write(tmp_path / "m.gguf"))
    twin = Twin(model._file)
    rng = np.random.default_rng(2)
    by_head = twin.tensor("blk.0.attn_k_b.weight").reshape(N_HEADS, RANK, PLAIN)
    q = rng.standard_normal((N_HEADS, PLAIN))
    latent = rng.standard_normal((9, RANK))
    expected = np.einsum("hp,nr,hrp->hn", q, latent, by_head)
    absorbed = [
        twin.project(q[None, h], "blk.0.attn_k_b", slice(h * RANK, (h + 1) * RANK))[0]
        for h in range(N_HEADS)
    ]
    assert np.allclose(np.stack(absorbed) @ latent.T, expected)
    model.close()


def test_only_latent_vectors_and_rotated_keys_are_cached(tmp_path: Path) -> None:
    model = Model.open(tiny().write(tmp_path / "m.gguf"))
    n_layers = model.config.n_layers
    width = RANK + TURNED
    assert memory_needs(model.config, KV_TYPES["f16"]).position_bytes == n_layers * 2 * width * 2
    model.close()


def test_latent_keys_can_be_shifted_and_restored(tmp_path: Path) -> None:
    model = Model.open(tiny(context_length=256).write(tmp_path / "m.gguf"), threads=2)
    moved, fresh, restored = (model.session(n_ctx=128, kv="f32") for _ in range(3))
    ids = np.random.default_rng(3).integers(3, 200, 60).tolist()
    moved.feed(ids)
    moved.shift(8, 16)
    fresh.feed(ids[:8] + ids[24:])
    moved_keys, expected = (
        session.pipeline._cache.layers[0].keys.read_tiles(0, 44) for session in (moved, fresh)
    )
    # of the first layer, keys depend on token and position alone
    assert np.abs(moved_keys - expected).max() < 1e-5
    saving = StateWriter(fresh, tmp_path / "kv.state")
    saving.notify()
    assert saving.flush(60)
    saving.close()
    assert restore_state(restored, tmp_path / "kv.state", fresh.tokens).tokens == 44
    assert restored.feed([7]).tobytes() == fresh.feed([7]).tobytes()
    model.close()


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("attention.key_length_mla", None, "attention.key_length_mla is missing: an old file"),
        (
            "attention.kv_lora_rank",
            1024,
            "attention.kv_lora_rank is 1024: with 32 turned elements at most 1024",
        ),
        ("attention.kv_lora_rank", 33, "attention.kv_lora_rank is 33: must be a multiple of 8"),
        (
            "rope.dimension_count",
            64,
            "rope.dimension_count is 64: must be less than the 64 of a head",
        ),
        ("attention.value_length_mla", 24, "blk.0.attn_v_b.weight has shape"),
        ("attention.temperature_scale", 0.1, "attention.temperature_scale is not supported"),
    ],
)
def test_widths_that_do_not_fit_are_refused(
    key: str, value: Any, problem: str, tmp_path: Path
) -> None:
    described = tiny()
    described.drop(f"deepseek2.{key}") if value is None else described.set(
        f"deepseek2.{key}", value
    )
    assert problem in refusal(described.write(tmp_path / "model.gguf"))

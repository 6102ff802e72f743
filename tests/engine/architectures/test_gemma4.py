"""Architecture gemma4: twin, tiny model, shared keys and values, and tensors that stay in the
file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.config import Rope
from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.machine import residency
from engine.measure.fit import needs_of_file
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import without
from tests.engine.reference import Array, Twin, causal_attention, gelu, rmsnorm
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

WINDOW = 6
KEY = "gemma4.attention."


def tiny(
    *,
    quant: str = "F32",
    n_layers: int = 4,
    n_kv_heads: int = 2,
    slides: list[bool] | None = None,
    shared: int | None = None,
    per_layer: bool = True,
    experts_from: int | None = None,
    seed: int = 0,
    **arguments: Any,
) -> tiny_gguf.TinyGGUF:
    """Return a tiny model.

    Every second layer has a window, half the heads, and half the width. Layers from the third on
    store no keys and values, although files contain their projections. The first layer without a
    window has no values.
    """
    slides = (
        [number % 2 == 0 and n_layers > 1 for number in range(n_layers)]
        if slides is None
        else slides
    )
    n_layers = len(slides)
    if shared is None:
        shared = max(0, n_layers - 2)
    block_size = TYPES_BY_NAME[quant].block_size
    if block_size == 256:
        arguments = {"head_dim": 128, **arguments}  # all heads of a window are a whole block
    arguments = {"vocabulary": "spm", "head_norms": True, "norms_after": True, **arguments}
    described = tiny_gguf.decoder(
        "gemma4", quant, n_layers=n_layers, n_kv_heads=n_kv_heads, seed=seed, tied=True, **arguments
    )
    dim, width = (
        described.value(f"gemma4.{key}") for key in ("embedding_length", "attention.key_length")
    )
    n_heads = described.value(KEY + "head_count")
    rng = np.random.default_rng(seed + 1)
    kv_heads = [max(1, n_kv_heads // 2) if entry else n_kv_heads for entry in slides]

    def matrix(name: str, rows: int, cols: int) -> None:
        if any(entry.name == name for entry in described.tensors):
            described.drop_tensor(name)
        described.tensors.append(tiny_gguf.quantised(name, quant, rows, cols, 1 / cols**0.5, rng))

    def vector(name: str, n: int, mean: float = 1.0) -> None:
        if any(entry.name == name for entry in described.tensors):
            described.drop_tensor(name)
        described.add_vector(name, mean + 0.1 * rng.standard_normal(n))

    for number, is_sliding in enumerate(slides):
        block = f"blk.{number}."
        head_width = width // 2 if is_sliding else width
        for letter, heads in (("q", n_heads), ("k", kv_heads[number]), ("v", kv_heads[number])):
            matrix(f"{block}attn_{letter}.weight", heads * head_width, dim)
        matrix(block + "attn_output.weight", dim, n_heads * head_width)
        vector(block + "attn_q_norm.weight", head_width, 0.5)
        vector(block + "attn_k_norm.weight", head_width, 0.5)
    if slides.count(False):
        described.drop_tensor(f"blk.{slides.index(False)}.attn_v.weight")
        n_turned = width // 4
        described.add_vector(
            "rope_freqs.weight", np.r_[np.ones(n_turned), np.full(width // 2 - n_turned, 1e30)]
        )
    described.set(KEY + "head_count_kv", np.array(kv_heads, "<u4"))
    described.set(KEY + "sliding_window", WINDOW)
    described.set(KEY + "sliding_window_pattern", np.array(slides))
    described.set(KEY + "shared_kv_layers", shared)
    for key, value in {
        "attention.key_length_swa": width // 2, "attention.value_length_swa": width // 2,
        "rope.dimension_count_swa": width // 2, "rope.freq_base": 1000.0,
        "rope.freq_base_swa": 50.0,
        "final_logit_softcapping": 0.5,
    }.items():  # fmt: skip
        described.set(f"gemma4.{key}", value)
    for number in range(n_layers):
        vector(f"blk.{number}.layer_output_scale.weight", 1, 0.8)
    if experts_from is not None:
        described.with_experts(first=experts_from, is_fused=True, keeps_dense=True)
        hidden = described.tensor(f"blk.{experts_from}.ffn_down_exps.weight").dims[0]
        described.set("gemma4.expert_feed_forward_length", np.full(n_layers, hidden, "<u4"))
        for block in (f"blk.{number}." for number in range(experts_from, n_layers)):
            vector(block + "ffn_gate_inp.scale", dim, dim**0.5)
            vector(block + "ffn_down_exps.scale", described.value("gemma4.expert_count"), 0.5)
            for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                vector(f"{block}{name}.weight", dim)
    head_width = max(32, block_size) if per_layer else 0
    described.set("gemma4.embedding_length_per_layer_input", head_width)
    if head_width:
        n_vocab = described.tensor("token_embd.weight").dims[1]
        described.tensors.append(
            tiny_gguf.quantised(
                "per_layer_token_embd.weight",
                quant,
                n_vocab,
                n_layers * head_width,
                head_width**-0.5,
                rng,
            )
        )
        matrix("per_layer_model_proj.weight", n_layers * head_width, dim)
        vector("per_layer_proj_norm.weight", head_width)
        for number in range(n_layers):
            matrix(f"blk.{number}.inp_gate.weight", head_width, dim)
            matrix(f"blk.{number}.proj.weight", dim, head_width)
            vector(f"blk.{number}.post_norm.weight", dim)
    return described


def inputs_of_layers(twin: Twin, x: Array, ids: list[int]) -> Array:
    """Return the input of each layer for the tokens, of shape (n_layers, n, width)."""
    width = twin.key("embedding_length_per_layer_input")
    projected = (twin.project(x, "per_layer_model_proj") / np.sqrt(x.shape[-1])).reshape(
        len(ids), -1, width
    )
    looked_up = twin.tensor("per_layer_token_embd.weight")[ids].reshape(
        len(ids), -1, width
    ) * np.sqrt(width)
    return ((twin.norm(projected, "per_layer_proj_norm") + looked_up) / np.sqrt(2)).swapaxes(0, 1)


def experts(twin: Twin, block: str, x: Array) -> Array:
    """Return the normalised result of experts, which normalise the stream themselves."""
    routed = twin.norm(x, block + "ffn_gate_inp", ".scale") / np.sqrt(x.shape[-1])
    weights = twin.routes(block, routed, is_renormalised=True)
    for name in ("up", "down"):
        scale = twin.tensor(f"{block}ffn_{name}_exps.scale")
        if scale is not None:
            weights = weights * scale
    h = twin.norm(x, block + "pre_ffw_norm_2")
    return twin.norm(
        twin.experts(block, h, weights, lambda gate, up: gelu(gate) * up), block + "post_ffw_norm_2"
    )


def logits(
    twin: Twin, ids: list[int], stored: dict[int, tuple[Array, Array]] | None = None
) -> Array:
    """Return the logits of all tokens; ``stored`` gets the keys and values of the layers."""
    stored = {} if stored is None else stored
    x = twin.embed(ids) * np.sqrt(twin.key("embedding_length"))
    slides = twin.key("attention.sliding_window_pattern")
    n_layers = len(twin.blocks)
    n_storing = n_layers - twin.key("attention.shared_kv_layers", 0)
    inputs = None
    if twin.key("embedding_length_per_layer_input", 0):
        inputs = inputs_of_layers(twin, x, ids)
    for number, block in enumerate(twin.blocks):
        turn = twin.turner(neighbours=False)
        width = twin.key("attention.key_length")
        if slides[number]:
            width = twin.key("attention.key_length_swa")
            base = twin.key("rope.freq_base_swa", 10000.0)
            turn = twin.turner(neighbours=False, theta=base, divisor=1.0, factors="", dim=width)
        h = twin.norm(x, block + "attn_norm")

        def heads(name: str, h: Array = h, block: str = block, width: int = width) -> Array:
            return twin.project(h, block + name).reshape(len(h), -1, width)

        if number < n_storing:
            k = heads("attn_k")
            v = k
            if twin.tensor(block + "attn_v.weight") is not None:
                v = heads("attn_v")
            stored[number] = (
                turn(twin.norm(k, block + "attn_k_norm")),
                rmsnorm(v, np.ones(width), twin.eps),
            )
        source = number
        if number >= n_storing:
            source = n_storing - (2 if slides[number] else 1)
        q = turn(twin.norm(heads("attn_q"), block + "attn_q_norm"))
        window = twin.key("attention.sliding_window") if slides[number] else None
        attended = causal_attention(q, *stored[source], window).reshape(len(ids), -1)
        x = x + twin.norm(
            twin.project(attended, block + "attn_output"), block + "post_attention_norm"
        )
        hidden = twin.feed_forward(block, twin.norm(x, block + "ffn_norm"), gelu)
        if twin.tensor(block + "ffn_gate_inp.scale") is not None:
            hidden = twin.norm(hidden, block + "post_ffw_norm_1") + experts(twin, block, x)
        x = x + twin.norm(hidden, block + "post_ffw_norm")
        if inputs is not None:
            gated = gelu(twin.project(x, block + "inp_gate")) * inputs[number]
            x = x + twin.norm(twin.project(gated, block + "proj"), block + "post_norm")
        scale = twin.tensor(block + "layer_output_scale.weight")
        if scale is not None:
            x = x * scale
    output = twin.head(x)
    cap = twin.key("final_logit_softcapping")
    if cap:
        return cap * np.tanh(output / cap)
    return output


def opened(tmp_path: Path, **arguments: Any) -> Model:
    return Model.open(tiny(**arguments).write(tmp_path / "m.gguf"), threads=2)


def test_heads_windows_and_caches_differ_by_layer(tmp_path: Path) -> None:
    model = opened(tmp_path, n_layers=6)
    local = Rope(50.0, 8, neighbours=False)
    full_rope = Rope(1000.0, 16, neighbours=False, factors="rope_freqs.weight")
    settings = [
        (entry.n_kv_heads, entry.key_dim, entry.window, entry.rope, entry.kv_of)
        for entry in model.config.attentions.values()
    ]
    assert settings == [
        (1, 8, WINDOW, local, None), (2, 16, None, full_rope, None), (1, 8, WINDOW, local, 0),
        (2, 16, None, full_rope, 1),
        (1, 8, WINDOW, local, 0), (2, 16, None, full_rope, 1),
    ]  # fmt: skip
    assert {entry.scale for entry in model.config.attentions.values()} == {1.0}
    assert model.config.last_storing == 1
    needs = memory_needs(model.config, KV_TYPES["f16"])
    assert (needs.position_bytes, [n_bytes for _, n_bytes in needs.rings]) == (
        2 * 16 * 2 * 2,
        [8 * 2 * 2],
    )
    session = model.session(n_ctx=64)
    assert session.kv_bytes == needs.bytes_for(64)
    model.close()


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ({}, without("layer_output_scale.weight")),
        ({}, lambda entry: entry.drop("gemma4.final_logit_softcapping")),
        (
            {},
            without(
                *(
                    f"blk.{number}.attn_{name}.weight"
                    for number in (2, 3)
                    for name in ("k", "v", "k_norm")
                )
            ),
        ),
        ({}, without("attn_v.weight")),
        ({"per_layer": False}, None),
        ({"shared": 0}, None),
        ({"slides": [False, True, False, False], "shared": 1}, None),
        ({"slides": [True, True, True], "shared": 1}, None),
        ({"experts_from": 1, "shared": 0, "per_layer": False}, None),
        ({"experts_from": 0}, without("ffn_down_exps.scale")),
    ],
)
def test_variants_equal_the_numpy_twin(
    arguments: dict[str, Any], change: Any, tmp_path: Path
) -> None:
    described = tiny(**arguments)
    if change is not None:
        change(described)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    expected = logits(Twin(model._file), IDS)
    session = model.session(n_ctx=64, kv="f32")
    assert nmse(session.feed(IDS, all_logits=True), expected) < 1e-9
    session.truncate(0)
    assert nmse(session.feed(IDS), expected[-1]) < 1e-9
    assert nmse(session.feed([7]), logits(Twin(model._file), [*IDS, 7])[-1]) < 1e-9
    model.close()


def test_a_fused_projection_changes_no_bit(tmp_path: Path) -> None:
    described = tiny(slides=[True, True, True, True])
    apart = Model.open(described.write(tmp_path / "apart.gguf"))
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    fused = Model.open(described.write(tmp_path / "fused.gguf"))
    logits_of_each = [
        model.session(n_ctx=64).feed(IDS, all_logits=True).tobytes() for model in (apart, fused)
    ]
    assert logits_of_each[0] == logits_of_each[1]
    apart.close()
    fused.close()


def _rows(model: Model, plan: str) -> dict[int, int]:
    """Return the number of matrix products of each layer."""
    rows = model.session(n_ctx=64).pipeline.plans[plan].describe()
    names = [row["weights"] for row in rows if row["op"].startswith(("matvec", "matmul"))]
    layers = [int(name.split(".")[1]) for name in names if name.startswith("blk.")]
    return {layer: layers.count(layer) for layer in set(layers)}


def test_layers_without_a_cache_run_for_the_last_token_only(tmp_path: Path) -> None:
    model = opened(tmp_path, n_layers=6)
    # output, gate, up, down, and two of the layer's input
    q = 1
    kv = 2
    n_other = 6
    assert _rows(model, "block") == {
        0: q + kv + n_other,
        1: 1,
    }  # the values of layer 1 are its keys
    assert _rows(model, "block last") == {1: q + n_other, **dict.fromkeys(range(2, 6), q + n_other)}
    assert _rows(model, "decode") == {
        0: q + kv + n_other,
        1: q + 1 + n_other,
        **dict.fromkeys(range(2, 6), q + n_other),
    }
    model.close()


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K"])
def test_the_end_of_a_prompt_equals_that_of_all_tokens(quant: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(3, 250, 150).tolist()
    model = opened(tmp_path, quant=quant, context_length=256)
    all_tokens, prompt = (model.session(n_ctx=192) for _ in range(2))
    prompt.pipeline.block_size_at = lambda pos: 64  # type: ignore[method-assign]
    assert prompt.feed(ids).tobytes() == all_tokens.feed(ids, all_logits=True)[-1].tobytes()
    assert prompt.feed([7]).tobytes() == all_tokens.feed([7]).tobytes()
    assert (
        prompt.feed([8, 9, 10]).tobytes()
        == all_tokens.feed([8, 9, 10], all_logits=True)[-1].tobytes()
    )
    model.close()


def test_a_shared_cache_is_shifted_only_once(tmp_path: Path) -> None:
    model = opened(tmp_path, context_length=256)
    moved, fresh = (model.session(n_ctx=128, kv="f32") for _ in range(2))
    ids = np.random.default_rng(3).integers(3, 250, 60).tolist()
    moved.feed(ids)
    moved.shift(8, 16)
    fresh.feed(ids[:8] + ids[24:])
    moved_keys, expected = (
        entry.pipeline._cache.layers[0].keys.read_tiles(0, 44) for entry in (moved, fresh)
    )
    # of the first layer, keys depend on token and position alone
    assert np.abs(moved_keys - expected).max() < 1e-5
    assert moved.pipeline._cache.layers[2] is moved.pipeline._cache.layers[0]
    model.close()


TABLE = "per_layer_token_embd.weight"


def test_the_input_table_costs_one_row_per_token(tmp_path: Path) -> None:
    described = tiny(quant="Q8_0")
    path = described.write(tmp_path / "m.gguf")
    table = described.tensor(TABLE)
    sizes = {str(entry.name): len(entry.data) for entry in described.tensors}
    unread = sum(
        size for name, size in sizes.items()
        if name.startswith(("blk.2.", "blk.3.")) and ("attn_k" in name or "attn_v" in name)
    )  # fmt: skip
    model = Model.open(path)
    assert model.weights_bytes == sum(sizes.values()) - len(table.data) - unread
    row_bytes = len(table.data) // table.dims[1]
    assert model.bytes_per_token == model.weights_bytes + row_bytes
    needs = needs_of_file(path)
    assert needs.weights_bytes == model.weights_bytes
    layers = [
        tensor for tensor in described.tensors if str(tensor.name).startswith(("blk.0.", "blk.1."))
    ]
    assert needs.products == {
        "Q8_0": sum(entry.dims[0] * entry.dims[1] for entry in layers if len(entry.dims) == 2)
    }
    model.close()


def test_the_input_table_is_not_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "resident_bytes", lambda view, _: 0)
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(
        residency, "read_in_order", lambda places, _: read.extend(entry[1:] for entry in places)
    )
    model = opened(tmp_path)
    info = model._file.gguf.tensors[TABLE]
    first = info.offset_bytes
    end = info.offset_bytes + info.size_bytes
    assert info.size_bytes > 16 * mmap.PAGESIZE
    model.session(n_ctx=64)
    n_inside = sum(max(0, min(end, upto) - max(first, start)) for start, upto in read)
    assert n_inside < 2 * mmap.PAGESIZE
    assert read[0][0] == 0
    assert read[-1][1] == model._file.gguf.file_bytes
    model.close()


def test_huge_pages_do_not_move_the_input_table_or_change_a_bit(tmp_path: Path) -> None:
    model = opened(tmp_path)
    mapped = model._weights
    session = model.session(n_ctx=64)
    expected = session.feed(IDS)
    model.use_weights("huge")
    assert model._weights[TABLE].address == mapped[TABLE].address
    assert model._weights["token_embd.weight"].address != mapped["token_embd.weight"].address
    assert (model._weights.rows(TABLE) == mapped.rows(TABLE)).all()
    session.truncate(0)
    assert session.feed(IDS).tobytes() == expected.tobytes()
    model.close()


EXPERTS: dict[str, Any] = {"experts_from": 1}


@pytest.mark.parametrize(
    ("arguments", "change", "problem"),
    [
        (
            {"shared": 1},
            None,
            "attention.shared_kv_layers is 1: keys and values of layer 2, which has a window",
        ),
        ({"n_layers": 4, "shared": 3}, None, "attention.shared_kv_layers is 3: must be 0 to 2"),
        (
            {"slides": [False, False, True, False], "shared": 2},
            None,
            "keys and values of layer 0, which has no window",
        ),
        (
            {"slides": [True, True, False], "shared": 1},
            None,
            "keys and values of layer 1, which has a window",
        ),
        (
            EXPERTS,
            lambda entry: entry.drop("gemma4.expert_feed_forward_length"),
            "is 0 or missing, but layer 1 has experts",
        ),
        (
            EXPERTS,
            lambda entry: entry.drop("gemma4.expert_count"),
            "gemma4.expert_count is missing",
        ),
        (
            EXPERTS,
            lambda entry: entry.drop_tensors("blk.2.ffn_gate_inp.scale"),
            "blk.2.ffn_gate_inp.scale is missing",
        ),
        (EXPERTS, lambda entry: entry.drop_tensors("blk.3.ffn_gate_inp.weight"), "blk.3.ffn_"),
        (
            {},
            lambda entry: entry.set(KEY + "head_count_kv", np.array([1, 2, 1, 1], "<u4")),
            "layer 1, whose 2 heads are not the 1 of layer 3",
        ),
        (
            {},
            lambda entry: entry.tensor("blk.3.attn_k.weight").dims.__setitem__(1, 8),
            "blk.3.attn_k.weight has shape",
        ),
    ],
)
def test_contradictory_settings_are_refused(
    arguments: dict[str, Any], change: Any, problem: str, tmp_path: Path
) -> None:
    described = tiny(**arguments)
    if change is not None:
        change(described)
    assert problem in refusal(described.write(tmp_path / "model.gguf"))


def test_layer_inputs_of_incomplete_blocks_are_refused(tmp_path: Path) -> None:
    described = tiny()
    rng = np.random.default_rng(1)
    n_vocab = described.tensor(TABLE).dims[1]
    described.drop_tensor(TABLE)
    described.tensors.append(tiny_gguf.quantised(TABLE, "Q8_0", n_vocab, 4 * 32, 0.1, rng))
    Model.open(described.write(tmp_path / "whole.gguf")).close()
    described.tensors[-1] = tiny_gguf.quantised(TABLE, "Q4_K", n_vocab, 4 * 64, 0.1, rng)
    described.set("gemma4.embedding_length_per_layer_input", 64)
    message = refusal(described.write(tmp_path / "model.gguf"))
    assert f"tensor {TABLE} is Q4_K: 64 weights of a layer are no blocks of 256" in message

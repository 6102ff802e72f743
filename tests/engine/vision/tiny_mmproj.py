"""Tiny encoders of every family with random weights, in which every tensor matters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.engine.tiny_gguf import U32, TensorEntry, TinyGGUF

DIM = 64
HIDDEN = 96
HEADS = 2
LAYERS = 2
TEXT_WIDTH = 48
MEAN = 0.48, 0.46, 0.41
DEVIATION = 0.27, 0.26, 0.28
F32 = 0


class _Maker:
    """Encoder that is being described."""

    def __init__(self, projector: str, **sizes: Any) -> None:
        self.tiny = TinyGGUF()
        self.rng = np.random.default_rng(11)
        self.set_keys(projector, **sizes)

    def set_keys(
        self,
        projector: str,
        patch: int = 16,
        image: int = 256,
        n_layers: int = LAYERS,
        activation: str = "gelu",
        mean: Iterable[float] = MEAN,
        deviation: Iterable[float] = DEVIATION,
        **others: int,
    ) -> None:
        tiny = self.tiny
        tiny.set("general.architecture", "clip")
        tiny.set("general.type", "mmproj")
        tiny.set("clip.projector_type", projector)
        tiny.set("clip.has_vision_encoder", True)
        if activation:
            tiny.set(f"clip.use_{activation}", True)
        numbers = {
            "projection_dim": TEXT_WIDTH,
            "image_size": image,
            "patch_size": patch,
            "embedding_length": DIM,
            "feed_forward_length": HIDDEN if n_layers else 0,
            "block_count": n_layers,
            "attention.head_count": HEADS if n_layers else 0,
            **others,
        }
        for name, value in numbers.items():
            tiny.set(f"clip.vision.{name}", value, U32)
        tiny.set("clip.vision.attention.layer_norm_epsilon", 1e-6)
        tiny.set("clip.vision.image_mean", np.array(mean, np.float32))
        tiny.set("clip.vision.image_std", np.array(deviation, np.float32))

    def add(self, name: str, shape: tuple[int, ...], std: float = 1.0, mean: float = 0.0) -> None:
        values = (mean + std * self.rng.standard_normal(shape)).astype("<f4")
        self.tiny.tensors.append(TensorEntry(name, list(shape[::-1]), F32, values.tobytes()))

    def linear(self, name: str, n_rows: int, n_cols: int, has_bias: bool = True) -> None:
        self.add(f"{name}.weight", (n_rows, n_cols), n_cols**-0.5)
        if has_bias:
            self.add(f"{name}.bias", (n_rows,), 0.3)

    def norm(self, name: str, n: int, has_bias: bool = True, mean: float = 1.0) -> None:
        self.add(f"{name}.weight", (n,), 0.25, mean)
        if has_bias:
            self.add(f"{name}.bias", (n,), 0.2)

    def patches(self, patch: int, has_bias: bool = True) -> None:
        self.add("v.patch_embd.weight", (DIM, 3, patch, patch), (3 * patch * patch) ** -0.5)
        if has_bias:
            self.add("v.patch_embd.bias", (DIM,), 0.3)

    def plain_layers(self, is_fused: bool = False) -> None:
        for number in range(LAYERS):
            b = f"v.blk.{number}."
            self.norm(b + "ln1", DIM)
            if is_fused:
                self.linear(b + "attn_qkv", 3 * DIM, DIM)
            else:
                for letter in "qkv":
                    self.linear(f"{b}attn_{letter}", DIM, DIM)
            self.linear(b + "attn_out", DIM, DIM)
            self.norm(b + "ln2", DIM)
            self.linear(b + "ffn_up", HIDDEN, DIM)
            self.linear(b + "ffn_down", DIM, HIDDEN)
        self.norm("v.post_ln", DIM)


def qwen3vl(deepstack: tuple[int, ...] = ()) -> TinyGGUF:
    make = _Maker("qwen3vl_merger", spatial_merge_size=2)
    make.patches(16)
    make.add("v.patch_embd.weight.1", (DIM, 3, 16, 16), (3 * 16 * 16) ** -0.5)
    make.add("v.position_embd.weight", (36, DIM), 0.6)
    make.plain_layers(is_fused=True)
    for number in deepstack:
        b = f"v.deepstack.{number}."
        make.norm(b + "norm", 4 * DIM)
        make.linear(b + "fc1", 4 * DIM, 4 * DIM)
        make.linear(b + "fc2", TEXT_WIDTH, 4 * DIM)
    make.linear("mm.0", 4 * DIM, 4 * DIM)
    make.linear("mm.2", TEXT_WIDTH, 4 * DIM)
    return make.tiny


def lfm2(has_norm: bool = True) -> TinyGGUF:
    make = _Maker("lfm2", **{"projector.scale_factor": 2})
    make.patches(16)
    make.add("v.position_embd.weight", (64, DIM), 0.6)
    make.plain_layers()
    if has_norm:
        make.norm("mm.input_norm", 4 * DIM)
    make.linear("mm.1", 72, 4 * DIM)
    make.linear("mm.2", TEXT_WIDTH, 72)
    return make.tiny


def gemma3() -> TinyGGUF:
    make = _Maker("gemma3", patch=14, image=112)
    make.patches(14)
    make.add("v.position_embd.weight", (64, DIM), 0.6)
    make.plain_layers()
    make.norm("mm.soft_emb_norm", DIM, has_bias=False)
    make.add("mm.input_projection.weight", (DIM, TEXT_WIDTH), DIM**-0.5)
    return make.tiny


def idefics3() -> TinyGGUF:
    make = _Maker("idefics3", image=64, preproc_image_size=128, **{"projector.scale_factor": 4})
    make.patches(16)
    make.add("v.position_embd.weight", (16, DIM), 0.6)
    make.plain_layers()
    make.linear("mm.model.fc", TEXT_WIDTH, 16 * DIM, has_bias=False)
    return make.tiny


def pixtral(has_merger: bool = False) -> TinyGGUF:
    others = {"spatial_merge_size": 2} if has_merger else {}
    make = _Maker("pixtral", activation="silu", image=512, **others)
    make.patches(16, has_bias=False)
    make.norm("v.pre_ln", DIM, has_bias=False)
    for number in range(LAYERS):
        b = f"v.blk.{number}."
        for name in ("ln1", "ln2"):
            make.norm(b + name, DIM, has_bias=False)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            make.linear(b + name, DIM, DIM, has_bias=False)
        for name, shape in (
            ("gate", (HIDDEN, DIM)),
            ("up", (HIDDEN, DIM)),
            ("down", (DIM, HIDDEN)),
        ):
            make.linear(f"{b}ffn_{name}", *shape, has_bias=False)
    if has_merger:
        make.norm("mm.input_norm", DIM, has_bias=False)
        make.linear("mm.patch_merger", DIM, 4 * DIM, has_bias=False)
    make.linear("mm.1", TEXT_WIDTH, DIM, has_bias=not has_merger)
    make.linear("mm.2", TEXT_WIDTH, TEXT_WIDTH, has_bias=not has_merger)
    make.add("v.token_embd.img_break", (TEXT_WIDTH,))
    return make.tiny


def gemma4v(has_bounds: bool = True, has_extras: bool = True) -> TinyGGUF:
    make = _Maker("gemma4v", activation="", mean=(0.1, 0.05, 0.0), deviation=(0.9, 1.0, 1.1))
    make.patches(16, has_bias=False)
    make.add("v.position_embd.weight", (2, 192, DIM), 0.5)

    def bounded(name: str, n_rows: int, n_cols: int) -> None:
        make.linear(name, n_rows, n_cols, has_bias=False)
        if has_bounds:
            for bound, mean in (("min", -1.3), ("max", 1.3)):
                make.add(f"{name}.input_{bound}", (1,), 0.1, mean)
                make.add(f"{name}.output_{bound}", (1,), 0.1, mean)

    for number in range(LAYERS):
        b = f"v.blk.{number}."
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            make.norm(b + name, DIM, has_bias=False)
        for name in ("attn_q_norm", "attn_k_norm"):
            make.norm(b + name, DIM // HEADS, has_bias=False, mean=0.4)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            bounded(b + name, DIM, DIM)
        bounded(b + "ffn_gate", HIDDEN, DIM)
        bounded(b + "ffn_up", HIDDEN, DIM)
        bounded(b + "ffn_down", DIM, HIDDEN)
        if has_extras:
            make.add(b + "out_scale.weight", (1,), 0.1, 0.8)
    if has_extras:
        make.add("v.std_bias", (DIM,), 2.0)
        make.add("v.std_scale", (DIM,), 0.05, 0.15)
    bounded("mm.input_projection", TEXT_WIDTH, DIM)
    return make.tiny


def gemma4uv() -> TinyGGUF:
    make = _Maker("gemma4uv", n_layers=0, activation="")
    width = 3 * 48 * 48
    make.norm("v.patch_norm.1", width)
    make.linear("v.patch_embd", DIM, width)
    make.norm("v.patch_norm.2", DIM)
    make.add("v.position_embd.weight", (2, 64, DIM), 0.5)
    make.norm("v.patch_norm.3", DIM)
    make.linear("mm.input_projection", TEXT_WIDTH, DIM, has_bias=False)
    return make.tiny


TINY = {
    "qwen3vl": lambda: qwen3vl(deepstack=(0,)),
    "qwen35": qwen3vl,
    "lfm2": lfm2,
    "lfm2 without norm": lambda: lfm2(has_norm=False),
    "gemma3": gemma3,
    "gemma4v": gemma4v,
    "gemma4v alone": lambda: gemma4v(has_bounds=False, has_extras=False),
    "gemma4uv": gemma4uv,
    "idefics3": idefics3,
    "pixtral": pixtral,
    "mistral3": lambda: pixtral(has_merger=True),
}
"""Encoders by name."""


def picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return a picture with edges and noise, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(x / 17 + y / 29), 128 + 100 * np.cos(x / 41 - y / 13)]
    channels = np.stack([*waves, (3 * x + 5 * y) % 256], axis=-1)
    noisy = channels + 20 * rng.standard_normal(channels.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)

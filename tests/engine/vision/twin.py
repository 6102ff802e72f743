"""Encoders in float64 and plain NumPy, straight from the formulas of each family.

The twin was compared with llama.cpp's libmtmd (``tests.programs.peers.pictures``): its rows differ
by an NMSE below 4e-7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

Array = np.ndarray


class EncoderTwin:
    """Tensors of an encoder in float64."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.tensors = {t.name: np.array(t.data, np.float64) for t in reader.tensors}
        self.keys: dict[str, Any] = {
            name.removeprefix("clip.vision."): field.contents()
            for name, field in reader.fields.items()
        }
        self.projector = self.keys["clip.projector_type"]
        self.eps = float(self.keys["attention.layer_norm_epsilon"])
        self.dim = self.keys["embedding_length"]
        self.patch = self.keys["patch_size"]
        self.n_layers = self.keys["block_count"]
        self.n_heads = self.keys["attention.head_count"]

    def rows(self, pixels: Array) -> Array:
        """Return the rows of a picture of its final size, (height, width, 3) uint8."""
        image = (pixels / 255 - self.keys["image_mean"]) / self.keys["image_std"]
        return getattr(self, self.projector)(image)

    # ---- parts

    def norm(self, x: Array, name: str, eps: float = 0.0) -> Array:
        eps = eps or self.eps
        bias = self.tensors.get(name + ".bias")
        if bias is not None:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        if name + ".weight" in self.tensors:
            x = x * self.tensors[name + ".weight"]
        return x if bias is None else x + bias

    def project(self, x: Array, name: str) -> Array:
        low, high, least, most = (
            self.tensors.get(f"{name}.{bound}", default)
            for bound, default in (
                ("input_min", -np.inf),
                ("input_max", np.inf),
                ("output_min", -np.inf),
                ("output_max", np.inf),
            )
        )
        y = np.clip(x, low, high) @ self.tensors[name + ".weight"].T
        return np.clip(y + self.tensors.get(name + ".bias", 0.0), least, most)

    def patches(self, image: Array, side: int) -> Array:
        """Return (rows, columns, 3 * side * side), one patch after the other."""
        height, width, _ = image.shape
        grid = np.empty((height // side, width // side, 3 * side * side))
        for row in range(grid.shape[0]):
            for column in range(grid.shape[1]):
                block = image[row * side : (row + 1) * side, column * side : (column + 1) * side]
                grid[row, column] = block.transpose(2, 0, 1).ravel()
        return grid

    def embedded(self, image: Array) -> Array:
        kernel = self.tensors["v.patch_embd.weight"]
        if "v.patch_embd.weight.1" in self.tensors:
            kernel = kernel + self.tensors["v.patch_embd.weight.1"]
        x = self.patches(image, self.patch) @ kernel.reshape(self.dim, -1).T
        return x + self.tensors.get("v.patch_embd.bias", 0.0)

    def attention(self, q: Array, k: Array, v: Array, scale: float) -> Array:
        width = self.dim // self.n_heads
        out = []
        for head in range(self.n_heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, part] @ k[:, part].T * scale
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        return np.concatenate(out, axis=-1)

    def plain_layers(self, x: Array, turn: Any = lambda x: x) -> Array:
        """Compute all layers; yields nothing, but stores the result of each in ``taps``."""
        self.taps = []
        for number in range(self.n_layers):
            b = f"v.blk.{number}."
            normed = self.norm(x, b + "ln1")
            if b + "attn_qkv.weight" in self.tensors:
                q, k, v = np.split(self.project(normed, b + "attn_qkv"), 3, axis=-1)
            else:
                q, k, v = (self.project(normed, f"{b}attn_{letter}") for letter in "qkv")
            heads = self.attention(turn(q), turn(k), v, (self.dim // self.n_heads) ** -0.5)
            x = x + self.project(heads, b + "attn_out")
            hidden = gelu(self.project(self.norm(x, b + "ln2"), b + "ffn_up"))
            x = x + self.project(hidden, b + "ffn_down")
            self.taps.append(x)
        return self.norm(x, "v.post_ln")

    # ---- families

    def qwen3vl_merger(self, image: Array) -> Array:
        x = self.embedded(image)
        n_rows, n_columns, _ = x.shape
        table = self.tensors["v.position_embd.weight"]
        side = round(len(table) ** 0.5)
        table = table.reshape(side, side, -1)
        order = [
            (row + i, column + j)
            for row in range(0, n_rows, 2)
            for column in range(0, n_columns, 2)
            for i in (0, 1)
            for j in (0, 1)
        ]
        for row in range(n_rows):
            for column in range(n_columns):
                x[row, column] += between(
                    table,
                    row * (side - 1) / (n_rows - 1),
                    column * (side - 1) / (n_columns - 1),
                )
        x = np.array([x[place] for place in order])
        half = self.dim // self.n_heads // 2
        frequencies = 10000.0 ** (-np.arange(half // 2) / (half // 2))
        angles = np.array(
            [np.concatenate([row * frequencies, column * frequencies]) for row, column in order]
        )
        x = self.plain_layers(x, lambda heads: turned(heads, angles, self.n_heads))
        parts = [self.project(gelu(self.project(cells(x, 4), "mm.0")), "mm.2")]
        for number, tap in enumerate(self.taps):
            b = f"v.deepstack.{number}."
            if b + "fc1.weight" in self.tensors:
                normed = self.norm(cells(tap, 4), b + "norm")
                parts.append(self.project(gelu(self.project(normed, b + "fc1")), b + "fc2"))
        return np.concatenate(parts, axis=-1)

    def lfm2(self, image: Array) -> Array:
        x = self.embedded(image)
        n_rows, n_columns, dim = x.shape
        x = x + shrunk(self.tensors["v.position_embd.weight"], n_rows, n_columns)
        x = self.plain_layers(x.reshape(-1, dim)).reshape(n_rows, n_columns, dim)
        merged = x.reshape(n_rows // 2, 2, n_columns // 2, 2, dim).transpose(0, 2, 1, 3, 4)
        merged = merged.reshape(-1, 4 * dim)
        if "mm.input_norm.weight" in self.tensors:
            merged = self.norm(merged, "mm.input_norm", 1e-5)
        return self.project(gelu(self.project(merged, "mm.1")), "mm.2")

    def idefics3(self, image: Array) -> Array:
        x = self.embedded(image).reshape(-1, self.dim) + self.tensors["v.position_embd.weight"]
        side = round(len(x) ** 0.5)
        x = self.plain_layers(x).reshape(side // 4, 4, side // 4, 4, -1).transpose(0, 2, 1, 3, 4)
        return self.project(x.reshape(-1, 16 * self.dim), "mm.model.fc")

    def pixtral(self, image: Array) -> Array:
        x = self.embedded(image)
        n_rows, n_columns, dim = x.shape
        x = self.norm(x.reshape(-1, dim), "v.pre_ln")
        rows, columns = (a.reshape(-1, 1) for a in np.mgrid[0:n_rows, 0:n_columns])
        width = dim // self.n_heads
        i = np.arange(width // 4)
        angles = np.concatenate(
            [rows * 10000.0 ** (-4 * i / width), columns * 10000.0 ** (-(4 * i + 2) / width)], -1
        )
        cos, sin = (f(angles)[:, None] for f in (np.cos, np.sin))

        def turn(heads: Array) -> Array:
            pairs = heads.reshape(len(heads), self.n_heads, -1, 2)
            a, b = pairs[..., 0], pairs[..., 1]
            return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(heads.shape)

        for number in range(self.n_layers):
            b = f"v.blk.{number}."
            normed = self.norm(x, b + "ln1")
            q, k, v = (self.project(normed, f"{b}attn_{letter}") for letter in "qkv")
            heads = self.attention(turn(q), turn(k), v, width**-0.5)
            x = x + self.project(heads, b + "attn_out")
            normed = self.norm(x, b + "ln2")
            gate = self.project(normed, b + "ffn_gate")
            hidden = gate / (1 + np.exp(-gate)) * self.project(normed, b + "ffn_up")
            x = x + self.project(hidden, b + "ffn_down")
        if "mm.patch_merger.weight" in self.tensors:
            x = self.norm(x, "mm.input_norm").reshape(n_rows // 2, 2, n_columns // 2, 2, dim)
            x = self.project(x.transpose(0, 2, 4, 1, 3).reshape(-1, 4 * dim), "mm.patch_merger")
            n_columns //= 2
        x = self.project(gelu(self.project(x, "mm.1")), "mm.2")
        stop = self.tensors["v.token_embd.img_break"]
        lines = [
            np.concatenate([x[i : i + n_columns], stop[None]]) for i in range(0, len(x), n_columns)
        ]
        return np.concatenate(lines)[:-1]

    def gemma3(self, image: Array) -> Array:
        x = self.embedded(image).reshape(-1, self.dim) + self.tensors["v.position_embd.weight"]
        side = round(len(x) ** 0.5)
        x = self.plain_layers(x).reshape(side // 4, 4, side // 4, 4, -1).mean((1, 3))
        normed = self.norm(x.reshape(-1, self.dim), "mm.soft_emb_norm")
        return normed @ self.tensors["mm.input_projection.weight"]

    def gemma4v(self, image: Array) -> Array:
        x = self.embedded(2 * image - 1)
        n_rows, n_columns, dim = x.shape
        by_column, by_row = self.tensors["v.position_embd.weight"].reshape(2, -1, dim)
        x = x + by_row[:n_rows, None] + by_column[None, :n_columns]
        x = x.reshape(-1, dim)
        rows, columns = (a.ravel() for a in np.mgrid[0:n_rows, 0:n_columns])
        width = dim // self.n_heads
        frequencies = 100.0 ** (-np.arange(width // 4) / (width // 4))

        def turn(heads: Array, name: str) -> Array:
            heads = self.norm(heads.reshape(-1, self.n_heads, width), name)
            halves = np.split(heads, 2, axis=-1)
            for half, positions in zip(halves, (columns, rows), strict=True):
                half[:] = turned(
                    half.reshape(len(half), -1), positions[:, None] * frequencies, self.n_heads
                ).reshape(half.shape)
            return np.concatenate(halves, axis=-1).reshape(-1, dim)

        for number in range(self.n_layers):
            b = f"v.blk.{number}."
            normed = self.norm(x, b + "ln1")
            q, k, v = (self.project(normed, f"{b}attn_{letter}") for letter in "qkv")
            v = self.norm(v.reshape(-1, self.n_heads, width), "no weight").reshape(-1, dim)
            heads = self.attention(
                turn(q, b + "attn_q_norm"), turn(k, b + "attn_k_norm"), v, scale=1.0
            )
            x = x + self.norm(self.project(heads, b + "attn_out"), b + "attn_post_norm")
            normed = self.norm(x, b + "ln2")
            gate = self.project(normed, b + "ffn_gate")
            hidden = gate / (1 + np.exp(-1.702 * gate)) * self.project(normed, b + "ffn_up")
            x = x + self.norm(self.project(hidden, b + "ffn_down"), b + "ffn_post_norm")
            x = x * self.tensors.get(b + "out_scale.weight", 1.0)
        x = x.reshape(n_rows // 3, 3, n_columns // 3, 3, dim).mean((1, 3)).reshape(-1, dim)
        x = x * dim**0.5 - self.tensors.get("v.std_bias", 0.0)
        x = x * self.tensors.get("v.std_scale", 1.0)
        return self.project(self.norm(x, "no weight"), "mm.input_projection")

    def gemma4uv(self, image: Array) -> Array:
        x = self.norm(self.patches(image, 3 * self.patch), "v.patch_norm.1", 1e-5)
        x = self.norm(self.project(x, "v.patch_embd"), "v.patch_norm.2", 1e-5)
        n_rows, n_columns, dim = x.shape
        by_column, by_row = self.tensors["v.position_embd.weight"].reshape(2, -1, dim)
        x = x + by_row[:n_rows, None] + by_column[None, :n_columns]
        x = self.norm(x.reshape(-1, dim), "v.patch_norm.3", 1e-5)
        return self.project(self.norm(x, "no weight"), "mm.input_projection")


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def cells(x: Array, n: int) -> Array:
    return x.reshape(len(x) // n, -1)


def turned(heads: Array, angles: Array, n_heads: int) -> Array:
    """Turn pairs that are half a head apart, (n, n_heads * width) by (n, width / 2)."""
    a, b = np.split(heads.reshape(len(heads), n_heads, -1), 2, axis=-1)
    cos, sin = (f(angles)[:, None] for f in (np.cos, np.sin))
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1).reshape(len(heads), -1)


def between(table: Array, row: float, column: float) -> Array:
    """Interpolate a table at one place."""
    top, left = int(row), int(column)
    bottom, right = min(top + 1, len(table) - 1), min(left + 1, len(table) - 1)
    y, x = row - top, column - left
    upper = (1 - x) * table[top, left] + x * table[top, right]
    lower = (1 - x) * table[bottom, left] + x * table[bottom, right]
    return (1 - y) * upper + y * lower


def shrunk(table: Array, n_rows: int, n_columns: int) -> Array:
    """Resize a square table by triangles, element by element."""
    side = round(len(table) ** 0.5)
    table = table.reshape(side, side, -1)

    def weights(index: int, n: int) -> Array:
        step = side / n
        centre = (index + 0.5) * step
        near = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - centre) / max(1.0, step))
        return near / near.sum()

    return np.array(
        [
            [
                np.einsum("i,j,ijd->d", weights(row, n_rows), weights(column, n_columns), table)
                for column in range(n_columns)
            ]
            for row in range(n_rows)
        ]
    )

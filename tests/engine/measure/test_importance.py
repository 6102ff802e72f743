"""Sums of squared inputs against a NumPy twin, for every type of layer, and their files."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from engine import Model
from engine.errors import BrokenModelError
from engine.gguf.imatrix import Imatrix, read_imatrix
from engine.gguf.write import TensorToWrite, writing
from engine.measure.importance import collect
from tests.engine import architectures, tiny_gguf
from tests.engine.reference import Twin
from tests.engine.refusals import refusal

IDS = [(11 * n) % 97 + 3 for n in range(24)]


class Watched(Twin):
    """Twin that records squared inputs by the tensor and the first of its rows."""

    def __init__(self, checked: Any) -> None:
        super().__init__(checked)
        self.squares: dict[tuple[str, int], list[Any]] = {}

    def project(self, x: Any, name: str, rows: slice = slice(None)) -> Any:
        key = name + ".weight", rows.start or 0
        self.squares.setdefault(key, []).append((x * x).reshape(-1, x.shape[-1]))
        return super().project(x, name, rows)


def collected(model: Model, *chunks: list[int]) -> Imatrix:
    return list(collect(model.session(64, "f32"), chunks))[-1]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures.KINDS)
def test_sums_are_those_of_the_numpy_twin(architecture: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", architecture), threads=2)
    importance = collected(model, IDS)
    twin = Watched(model._file)
    architectures.load(architecture).logits(twin, IDS)
    compared = set()
    for (name, row), squares in twin.squares.items():
        if name in importance.sums:
            n_parts = len(importance.sums[name])
            rows = model._file.weights[name].n_rows
            index = row // (rows // n_parts)
            expected = np.concatenate(squares).mean(0)
            n = importance.counts[name][index]
            assert n_parts == 1 or n == len(np.concatenate(squares)), name
            # The engine and the twin divide the inputs of Gemma 4's layer projections by the square
            # root of 2 at different times.
            if name.endswith(".proj.weight"):
                expected *= 2
            np.testing.assert_allclose(
                importance.sums[name][index] / n,
                expected,
                2e-3,
                1e-6 * expected.max(),
                err_msg=name,
            )
            compared.add(name)
    left_out = {name for name, _ in twin.squares if name.startswith("blk.")} - compared
    # of latent attention: each head has its own
    assert all(re.search("attn_(kv|k|v)_b", name) for name in left_out)
    assert len(compared) >= 6
    model.close()


@pytest.mark.smoke
@pytest.mark.slow
def test_chunks_add_up_and_are_independent(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    apart = [collected(model, chunk) for chunk in (IDS, IDS[::-1])]
    together = collected(model, IDS, IDS[::-1])
    assert (together.n_chunks, together.chunk_size) == (2, len(IDS))
    for name, sums in together.sums.items():
        np.testing.assert_allclose(sums, sum(chunk.sums[name] for chunk in apart), rtol=1e-6)
        assert together.counts[name].tolist() == [2 * len(IDS)]
    model.close()


@pytest.mark.slow
def test_a_model_that_computes_nan_is_refused(tmp_path: Path) -> None:
    described = tiny_gguf.model()
    described.fill("blk.1.attn_norm.weight", 3e38)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    with pytest.raises(BrokenModelError, match="computed NaN or infinity"):
        collected(model, IDS)
    model.close()


SOME = Imatrix(
    {
        "blk.0.a.weight": np.array([[8, 2]], np.float32),
        "blk.0.e.weight": np.array([[9, 3], [0, 0]], np.float32),
    },
    {"blk.0.a.weight": np.array([4], np.float32), "blk.0.e.weight": np.array([3, 0], np.float32)},
    n_chunks=2,
    chunk_size=512,
)


def test_a_file_has_the_names_and_means_of_llama_cpp(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    SOME.write(path, ["a.txt", "b.txt"])
    reader = GGUFReader(path)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["blk.0.a.weight.in_sum2"] == [2, 1]
    assert shapes["blk.0.e.weight.in_sum2"] == [2, 2]
    assert shapes["blk.0.e.weight.counts"] == [1, 2]
    keys = ("general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
    assert [reader.fields[key].contents() for key in keys] == [
        "imatrix",
        ["a.txt", "b.txt"],
        2,
        512,
    ]
    means = {name: values.tolist() for name, values in read_imatrix(path).items()}
    assert means == {"blk.0.a.weight": [2, 0.5], "blk.0.e.weight": [3, 1, 1, 1]}


def old_form(*entries: tuple[bytes, int, list[float]]) -> bytes:
    chunks = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        chunks.append(
            struct.pack(
                f"<i{len(name)}sii{len(values)}f", len(name), name, calls, len(values), *values
            )
        )
    return b"".join(chunks)


def test_the_older_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(
        old_form((b"blk.0.a.weight", 4, [8, 2])) + struct.pack("<ii5s", 4, 5, b"a.txt")
    )
    assert {name: values.tolist() for name, values in read_imatrix(path).items()} == {
        "blk.0.a.weight": [2, 0.5]
    }


WHOLE = old_form((b"blk.0.a.weight", 4, [8, 2]))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (WHOLE[:-1], "ends within the values of a matrix"),
        (WHOLE[:9], "is no file of importance, or damaged at byte"),
        (b"\0\0\0\0", "is no file of importance, or damaged at byte 0"),
        (b"\xff\xff\xff\x7f" + WHOLE[4:], "damaged at byte 0"),
        (old_form((b"a", 1, [float("nan")])), "values that are no means of squares"),
        (old_form((b"a", 1, [-1.0])), "values that are no means of squares"),
        (tiny_gguf.build(), "is GGUF, but no imatrix"),
        (b"", "is empty"),
    ],
)
def test_a_file_that_is_not_an_imatrix_is_refused_in_one_line(
    raw: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    assert why in refusal(path, read_imatrix)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"a.counts": np.ones((3, 1), np.float32)}, "a has 3 counts for"),
        ({"a.counts": np.full((1, 1), np.nan, np.float32)}, "values that are no means of squares"),
        ({"a.in_sum2": np.array([[np.inf, 1]], np.float32)}, "values that are no means of squares"),
        ({"b.in_sum2": np.ones((1, 2), np.float32)}, "has no b.counts of type F32"),
    ],
)
def test_wrong_sums_are_refused_in_one_line(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    values = {
        "a.in_sum2": np.ones((1, 2), np.float32),
        "a.counts": np.ones((1, 1), np.float32),
        **change,
    }
    table = [TensorToWrite(name, array.shape, "F32") for name, array in values.items()]
    with writing(path, {"general.type": "imatrix"}, table) as out:
        for array in values.values():
            out.write(array)
    assert why in refusal(path, read_imatrix)

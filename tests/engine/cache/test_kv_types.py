"""Types of the KV cache: kernels pack keys and values as NumPy does, and rotating them first
changes no result."""

from pathlib import Path

import numpy as np
import pytest

from engine import KV_TYPES, Model, Session
from engine.cache import hadamard
from engine.cache.kv_types import ElementType
from engine.cache.layer_cache import Heads
from engine.errors import MemoryPlanError
from tests.engine import tiny_gguf

IDS = np.random.default_rng(0).integers(3, 250, 29).tolist()
WIDTHS = 32, 96, 128


def outliers(width: int) -> np.ndarray:
    """Return heads like those of trained models: a few elements are much larger than the others."""
    heads = np.random.default_rng(width).standard_normal((3, 50, width)).astype(np.float32)
    heads[..., :: width // 4] *= 30
    return heads


@pytest.mark.parametrize("width", WIDTHS)
def test_the_rotation_is_its_own_inverse_and_keeps_products(width: int) -> None:
    heads = outliers(width)
    rotated = hadamard.multiplied(heads)
    assert np.allclose(hadamard.multiplied(rotated), heads, atol=1e-4)
    assert np.allclose(
        rotated @ rotated.swapaxes(1, 2), heads @ heads.swapaxes(1, 2), rtol=1e-4, atol=1e-2
    )
    assert np.abs(rotated).max() < np.abs(heads).max()


def test_the_rotation_is_a_hadamard_matrix() -> None:
    matrix = hadamard.multiplied(np.eye(16, dtype=np.float32))
    assert (np.abs(matrix) == 0.25).all()
    assert (matrix == matrix.T).all()
    # One element of each block of 32 is nonzero.
    assert (hadamard.multiplied(np.ones((1, 96), np.float32)) != 0).sum() == 3


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_packing_loses_less_of_rotated_heads(name: str) -> None:
    element_type = KV_TYPES[name].keys
    heads = outliers(128)

    def error(unpacked: np.ndarray) -> float:
        return float(((element_type.unpack(*element_type.pack(unpacked)) - unpacked) ** 2).mean())

    assert error(hadamard.multiplied(heads)) < error(heads) / 3


def test_four_bits_represent_the_extremes_and_zero() -> None:
    element_type = KV_TYPES["q4_0"].keys
    heads = np.zeros((1, 2, 64), np.float32)
    heads[0, 0, :32] = np.linspace(-8, 7, 32)
    heads[0, 1, 32:] = np.linspace(-7, 8, 32)
    unpacked = element_type.unpack(*element_type.pack(heads))
    assert unpacked[0, 0, 0] == -8
    assert unpacked[0, 1, 63] == 8
    assert np.abs(unpacked - heads).max() <= 1  # the other end of a range has one step less
    assert (unpacked[heads == 0] == 0).all()


def values_of(
    heads: Heads, element_type: ElementType, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return elements and scales of the first n positions, of shape (n_heads, n, ...)."""
    shape = len(heads.elements), heads.n_slots, -1
    scales = heads.scales.view(np.float32).reshape(*shape)[:, :n] if heads.scale_bytes else None
    return heads.elements.view(element_type.dtype).reshape(shape)[:, :n], scales


def filled(model: Model, kv: str) -> Session:
    session = model.session(n_ctx=64, kv=kv)
    session.feed(IDS)
    return session


@pytest.mark.slow
@pytest.mark.parametrize("kv", KV_TYPES)
def test_kernels_and_numpy_pack_equally_bit_for_bit(tmp_path: Path, kv: str) -> None:
    path = tiny_gguf.write(
        tmp_path / "m.gguf", n_layers=1, dim=128, n_heads=4, n_kv_heads=2, head_dim=32
    )
    model = Model.open(path, threads=2)
    n = len(IDS)
    exact, layer = (filled(model, name).memory.layers[0] for name in ("f32", kv))  # type: ignore[attr-defined]
    keys = exact.keys.read_tiles(0, n)
    values = values_of(exact.values, KV_TYPES["f32"].values, n)[0]
    if KV_TYPES[kv].has_hadamard:
        keys = hadamard.multiplied(keys)
        values = hadamard.multiplied(values)
    packed_keys = KV_TYPES[kv].keys.pack(keys)
    element_type = KV_TYPES[kv].values
    assert (layer.keys.read_tiles(0, n) == KV_TYPES[kv].keys.unpack(*packed_keys)).all()
    for stored, packed in zip(
        values_of(layer.values, element_type, n), element_type.pack(values), strict=True
    ):
        assert (stored is None and packed is None) or (stored == packed).all()
    model.close()


@pytest.mark.slow
def test_each_token_takes_the_bytes_of_its_type(tmp_path: Path) -> None:
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32),
        threads=1,
    )
    needed = {name: model.session(n_ctx=64, kv=name).kv_bytes / 64 for name in KV_TYPES}
    assert needed == {
        "f16": 128, "f32": 256, "q8_0": 72, "q4_0": 40, "f16/q8_0": 100, "f16/q4_0": 84,
        "q8_0/q4_0": 56,
    }  # fmt: skip
    model.close()


@pytest.mark.parametrize("kv", ["q4_0", "f16/q8_0"])
def test_heads_without_complete_groups_are_refused(tmp_path: Path, kv: str) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", head_dim=24), threads=1)
    with pytest.raises(
        MemoryPlanError,
        match=f"'{kv}' needs heads of a multiple of 32 elements; this model's have 24",
    ):
        model.session(n_ctx=64, kv=kv)
    model.close()

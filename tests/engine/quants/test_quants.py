"""All registered types against the gguf package, vectors of the C reference, and float64
products."""

import gguf
import numpy as np
import pytest

from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.kernels.grid_tables import GRIDS
from engine.quants import QUANTS
from engine.quants.base import QUANT_TYPES, QuantType
from tests.engine.kernel_call import (
    columns_of,
    dequantize,
    embed,
    filled_weights,
    ggml_type,
    multiply,
    random_blocks,
    random_columns,
    random_weights,
    with_scales,
)

pytestmark = pytest.mark.slow

N_ROWS = 61
N_TOKENS = 13
TOLERANCE = 1e-6
"""Largest error relative to the largest result, from rounding float32 sums."""


def column_counts(name: str) -> tuple[int, ...]:
    """Return lengths of rows: one block, and several blocks with a remainder for kernels."""
    block = TYPES_BY_NAME[name].block_size
    if block == 1:
        return 7, 64, 172
    if block < 256:
        return block, 9 * block, 28 * block
    return block, 5 * block


every_type = pytest.mark.parametrize("quant", QUANTS, indirect=True)
every_length = pytest.mark.parametrize(
    ("quant", "n_cols"),
    [(name, n) for name in QUANTS for n in column_counts(name)],
    indirect=["quant"],
)
without_floats = pytest.mark.parametrize(
    "quant", [name for name in QUANTS if TYPES_BY_NAME[name].block_size > 1], indirect=True
)

every_product = pytest.mark.parametrize("n_tokens", [0, 4], ids=["one", "block"])
"""Products of one token and of a block; ``test_levels.py`` compiles only the kernels it needs."""

WITHOUT_VECTORS = {"F32", "F16", "BF16", "Q1_0", "Q2_0", "NVFP4"}
"""Types without vectors of the C reference; types of few bits have a NumPy twin and handwritten
blocks."""
with_vectors = pytest.mark.parametrize(
    "quant", sorted(set(QUANTS) - WITHOUT_VECTORS), indirect=True
)


@pytest.fixture
def quant(request: pytest.FixtureRequest) -> QuantType:
    return QUANT_TYPES[request.param]


def some_cols(quant: QuantType) -> int:
    return column_counts(quant.name)[-1]


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(actual - expected).max() <= TOLERANCE * np.abs(expected).max()


@every_type
def test_layouts_equal_those_of_ggml(quant: QuantType) -> None:
    if not hasattr(gguf.GGMLQuantizationType, quant.name):
        pytest.skip("the installed gguf does not know this type")
    assert gguf.GGML_QUANT_SIZES[ggml_type(quant)] == (quant.block_size, quant.type_size)


@every_length
def test_embed_equals_the_gguf_package_bit_for_bit(quant: QuantType, n_cols: int) -> None:
    weights = random_weights(quant, 9, n_cols)
    tokens = [8, 0, 3, 3, 7]
    expected = dequantize(quant, weights)[tokens]
    for n_threads in (1, 3):
        actual = embed(quant, weights, tokens, n_cols, n_threads)
        assert actual.tobytes() == expected.astype(np.float32).tobytes()


@with_vectors
def test_embed_equals_the_c_reference_bit_for_bit(quant: QuantType, shared_data) -> None:
    vectors = np.load(shared_data / "quants" / "ggml_quant_vectors.npz")
    expected = vectors[f"{quant.name}_dequant"]
    weights = vectors[f"{quant.name}_blocks"].view(np.uint8).reshape(len(expected), -1)
    assert (
        embed(quant, weights, list(range(len(expected))), expected.shape[1]).tobytes()
        == expected.tobytes()
    )


@every_length
def test_products_equal_those_of_float64(quant: QuantType, n_cols: int) -> None:
    weights = random_weights(quant, N_ROWS, n_cols)
    columns = random_columns(quant, N_TOKENS, n_cols)
    expected = columns.values[:N_TOKENS] @ dequantize(quant, weights).astype(np.float64).T
    assert_close(multiply(quant, weights, columns, 0), expected[:1])
    assert_close(multiply(quant, weights, columns, N_TOKENS), expected)


@every_product
@without_floats
def test_largest_values_fit_the_integers_on_the_way(quant: QuantType, n_tokens: int) -> None:
    n_cols = some_cols(quant)
    signs = np.where(np.arange(4)[:, None] & 1, -127, 127) * np.ones((4, n_cols), np.int64)
    columns = columns_of(quant, signs)
    for byte in (0x00, 0x0F, 0x7F, 0x80, 0xF0, 0xFF):
        weights = filled_weights(quant, 9, n_cols, byte)
        read = dequantize(quant, weights).astype(np.float64)
        expected = (columns.values @ read.T)[: max(n_tokens, 1)]
        limit = TOLERANCE * max((np.abs(columns.values) @ np.abs(read).T).max(), 1.0)
        assert np.abs(multiply(quant, weights, columns, n_tokens) - expected).max() <= limit


@pytest.mark.smoke
@every_product
@without_floats
def test_integers_are_exact(quant: QuantType, n_tokens: int) -> None:
    n_cols = column_counts(quant.name)[0]
    weights = with_scales(quant, random_blocks(quant, 9, n_cols), np.ones)
    columns = columns_of(quant, np.random.default_rng(5).integers(-3, 4, (4, n_cols)), d=1.0)
    # The results are below 2^24, so float32 is exact.
    expected = columns.values @ dequantize(quant, weights).astype(np.float64).T
    assert (multiply(quant, weights, columns, n_tokens) == expected[: max(n_tokens, 1)]).all()


@without_floats
def test_random_bits_are_read_as_in_the_gguf_package(quant: QuantType) -> None:
    """Scales include NaN, infinity and all sizes; indices stay inside tables."""
    n_cols = column_counts(quant.name)[-1]
    weights = random_blocks(quant, 32, n_cols, seed=11).reshape(32, -1)
    with np.errstate(all="ignore"):
        read = dequantize(quant, weights)
        actual = embed(quant, weights, list(range(32)), n_cols)
        assert np.array_equal(actual, read, equal_nan=True)
        columns = columns_of(
            quant, np.random.default_rng(5).integers(-127, 128, (4, n_cols)), d=0.01
        )
        values = columns.values[:4]
        largest = (np.abs(values) @ np.abs(read.astype(np.float64)).T).max(0)
        expected = values @ read.astype(np.float64).T
        sound = largest < 1e37
    for product in (
        multiply(quant, weights, columns, 4),
        multiply(quant, weights, columns, 4, small_batch=True),
    ):
        assert np.all(np.abs(product - expected)[:, sound] <= TOLERANCE * largest[sound])
        assert not np.isfinite(product[:, np.isnan(largest)]).any()


@pytest.mark.parametrize("name", GRIDS)
def test_grids_equal_those_of_the_gguf_package(name: str) -> None:
    package_grid = getattr(gguf.quants, name)
    package_grid.init_grid()
    grid = package_grid.grid.reshape(package_grid.grid_shape).astype(int)
    if name == "IQ1_S":
        grid = 8 * (grid + 1)
    entries = np.array([list(entry) for entry in GRIDS[name].entries()])
    assert (entries == grid).all()


@pytest.mark.parametrize(
    ("name", "block", "weights"),
    [
        ("Q1_0", "003c" + "05" + "ff" * 15, [1, -1, 1, -1, -1, -1, -1, -1] + [1] * 120),
        ("Q2_0", "0040" + "e4" + "55" * 15, [-2, 0, 2, 4] + [0] * 60),
    ],
)
def test_types_unknown_to_the_package_are_read_as_in_ggml(
    name: str, block: str, weights: list[float]
) -> None:
    """Blocks follow the layout of ggml: the lowest bits are the first weight."""
    rows = np.frombuffer(bytes.fromhex(block), np.uint8)[None]
    assert embed(QUANT_TYPES[name], rows, [0], len(weights))[0].tolist() == weights


@every_type
def test_number_of_threads_changes_nothing(quant: QuantType) -> None:
    n_cols = some_cols(quant)
    weights = random_weights(quant, N_ROWS, n_cols)
    columns = random_columns(quant, N_TOKENS, n_cols)
    for n_tokens in (0, N_TOKENS):
        alone = multiply(quant, weights, columns, n_tokens)
        for n_threads in (2, 3, 16):
            assert (multiply(quant, weights, columns, n_tokens, n_threads) == alone).all()


@every_type
def test_a_column_does_not_depend_on_its_neighbours(quant: QuantType) -> None:
    n_cols = some_cols(quant)
    weights = random_weights(quant, N_ROWS, n_cols)
    columns = random_columns(quant, 16, n_cols)
    together = multiply(quant, weights, columns, 16)
    for first, n_tokens in ((0, 1), (3, 2), (1, 7), (11, 5)):
        actual = multiply(quant, weights, columns.from_column(first), n_tokens)
        assert (actual == together[first : first + n_tokens]).all()


@every_type
def test_bias_and_residual_are_added(quant: QuantType) -> None:
    n_cols = some_cols(quant)
    weights = random_weights(quant, N_ROWS, n_cols)
    columns = random_columns(quant, N_TOKENS, n_cols)
    added = np.random.default_rng(3).standard_normal((N_TOKENS, N_ROWS), np.float32)
    for n_tokens in (0, N_TOKENS):
        plain = multiply(quant, weights, columns, n_tokens)
        assert (
            multiply(quant, weights, columns, n_tokens, add=added) == plain + added[: len(plain)]
        ).all()
        assert (
            multiply(quant, weights, columns, n_tokens, add=added[:1].copy()) == plain + added[:1]
        ).all()


@every_length
def test_a_few_columns_equal_single_ones_bit_for_bit(quant: QuantType, n_cols: int) -> None:
    weights = random_weights(quant, N_ROWS, n_cols)
    columns = random_columns(quant, 12, n_cols)
    added = np.random.default_rng(3).standard_normal((12, N_ROWS), np.float32)
    alone = [
        multiply(quant, weights, columns.from_column(c), 0, add=added[c : c + 1].copy())[0]
        for c in range(12)
    ]
    for n_tokens in (*range(1, 9), 11, 12):
        n_threads = 1 + 2 * (n_tokens % 2)
        together = multiply(
            quant, weights, columns, n_tokens, n_threads, added[:n_tokens].copy(), small_batch=True
        )
        assert together.tobytes() == np.array(alone[:n_tokens]).tobytes()

"""All vector intrinsics against NumPy, at the level of this process."""

import numpy as np
import pytest

from engine.machine.level import HAS_ARM64
from tests.engine import kernel_call, simd_kernels


class Input:
    """Source bytes of ``simd_kernels``, and NumPy views of them."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.memory = np.zeros(320, np.uint8)
        self.memory[:96] = rng.integers(0, 256, 96)
        self.memory[:3] = (0, 128, 127)
        self.memory[32:35] = (129, 127, 129)
        self.memory[96:128] = rng.integers(0, 16, 32)
        self.memory[128:224] = (rng.standard_normal(24) * 10).astype(np.float32).view(np.uint8)
        self.memory[224:256] = (rng.standard_normal(16) * 100).astype(np.float16).view(np.uint8)

    def part(self, offset: int, dtype: type, n: int) -> np.ndarray:
        return self.memory[offset : offset + n * np.dtype(dtype).itemsize].view(dtype)


@pytest.fixture(params=range(3))
def source(request: pytest.FixtureRequest) -> Input:
    return Input(request.param)


def results(kernel, source: Input, n_bytes: int = 2048) -> np.ndarray:
    out = np.zeros(n_bytes, np.uint8)
    kernel_call.KERNEL(kernel.address)(source.memory.ctypes.data, out.ctypes.data, 0)
    return out


def assert_equal(out: np.ndarray, expected: dict[str, np.ndarray], step: int = 32) -> None:
    """Compare the results, ``step`` bytes apart, bit for bit with the expected ones."""
    for index, (name, value) in enumerate(expected.items()):
        value = np.atleast_1d(value)
        actual = out[step * index : step * index + value.nbytes].view(value.dtype)
        np.testing.assert_array_equal(actual, value, err_msg=name)


def logical_shift_16(a: np.ndarray, bits: int) -> np.ndarray:
    """Shift 16-bit words to the right, or to the left if ``bits`` is negative."""
    words = a.view(np.uint16)
    if bits > 0:
        return (words >> bits).view(np.int8)
    return (words << -bits).view(np.int8)


def test_lanes_of_integers(source: Input) -> None:
    a = source.part(0, np.int8, 32)
    b = source.part(32, np.int8, 32)
    a16 = source.part(0, np.int16, 16)
    b16 = source.part(32, np.int16, 16)
    a32 = source.part(0, np.int32, 8)
    index = source.part(96, np.int8, 32)
    table = np.concatenate([b[:16][index[:16]], b[16:][index[16:]]])
    expected = {
        "add": a + b, "sub": a - b, "mul": a16 * b16, "and": a & b, "or": a | b, "xor": a ^ b,
        "shift_right": logical_shift_16(a, 3), "shift_left": logical_shift_16(a, -5),
        "shift_lanes_left": a16 << 3,
        "shift_lanes_right": a32 >> 7, "shift_left_i32": a32 << 9,
        "abs": np.abs(a), "sign": b * np.sign(a), "lookup": table,
    }  # fmt: skip
    assert_equal(results(simd_kernels.lanes, source), expected)


def neighbours(a: np.ndarray) -> np.ndarray:
    return a[0::2] + a[1::2]


def in_halves(a: np.ndarray, b: np.ndarray, fold) -> np.ndarray:
    """Fold each half of a and of b; the results of a and b are adjacent in each half."""
    n = len(a) // 2
    return np.concatenate([fold(half) for half in (a[:n], b[:n], a[n:], b[n:])])


def test_products_and_sums_of_neighbours(source: Input) -> None:
    a = source.part(0, np.int8, 32)
    b = source.part(32, np.int8, 32)
    a16, b16, a32, b32 = (
        source.part(offset, dtype, 32 // size)
        for dtype, size in ((np.int16, 2), (np.int32, 4))
        for offset in (0, 32)
    )
    unsigned = neighbours((a & 127).astype(np.int32) * b).astype(np.int16)
    factors = a if HAS_ARM64 else a.view(np.uint8)
    fours = neighbours(neighbours(factors.astype(np.int32) * b))
    words = neighbours(a16.astype(np.int64) * b16).astype(np.int32)
    mul_high = a16.view(np.uint16).astype(np.uint32) * b16.view(np.uint16) >> 16
    expected = {
        "maddubs": unsigned,
        "mul_high": mul_high.astype(np.uint16),
        "maddwd": words, "maddwd_128": np.concatenate([words[:4], np.zeros(4, np.int32)]),
        "fold_fours": in_halves(a16, b16, lambda half: half[:4] + half[4:]),
        "fold_twos": in_halves(a16, b16, lambda half: half[[0, 1, 4, 5]] + half[[2, 3, 6, 7]]),
        "fold_neighbours": in_halves(a32, b32, neighbours),
        "add_halves": np.concatenate([a32[:4] + a32[4:], b32[:4] + b32[4:]]),
        "sum_i32x8": a32.sum(dtype=np.int32),
        "sum_i32x4": a32[:4].sum(dtype=np.int32), "splat_i16": np.full(16, -3, np.int16),
        "splat_i32": np.full(8, -70000, np.int32),
        "pairs_i16": np.tile(np.array([-8, 5], np.int16), 8),
        "opaque": a16,
        "maddwd_folded": np.int32(-63 * ((a & 15).astype(np.int32) * b).sum(dtype=np.int32)),
        "add_fours": source.part(64, np.int32, 8) + fours,
    }  # fmt: skip
    assert_equal(results(simd_kernels.products, source), expected)


def test_sums_of_whole_groups(source: Input) -> None:
    a, b, c = (source.part(offset, np.int8, 32).astype(np.int32) for offset in (0, 32, 64))
    x = a | 1
    y = b | 1
    z = c | 1

    def sums(weights: list[np.ndarray], activations: list[np.ndarray], size: int) -> np.ndarray:
        return (
            (np.concatenate(weights) * np.concatenate(activations))
            .reshape(-1, size)
            .sum(1, dtype=np.int32)
        )

    fours = sums([a & 15, b & 15, c & 15, (a & 255) >> 4], [y, z, x, y], 32)
    fives = sums([a & 31, b & 31, c & 31, a & 31], [y, z, x, y], 32)
    expected = {
        "sums_of_32": np.concatenate([fours, sums([a, b, c, a], [y, z, x, y], 32)]),
        "sums_of_16": np.concatenate([fives, sums([a & 63, b & 63], [y, z], 16)]),
    }
    assert_equal(results(simd_kernels.group_sums, source), expected)


@pytest.mark.parametrize(
    ("weight", "activation"), [(255, 127), (255, 129), (127, 127), (128, 127), (128, 129)]
)
def test_largest_sums_of_groups_fit(weight: int, activation: int) -> None:
    extreme = Input(0)
    extreme.memory[:96] = activation
    extreme.memory[:32] = weight
    test_sums_of_whole_groups(extreme)


def test_the_counter_does_not_go_back_during_a_pause(source: Input) -> None:
    first, second = results(simd_kernels.waiting, source, 16).view(np.int64)
    assert second >= first


def spread(source: np.ndarray) -> np.ndarray:
    return (np.unpackbits(source.view(np.uint8), bitorder="little") * 16).astype(np.int8)


def test_placement_of_lanes(source: Input) -> None:
    a = source.part(0, np.int8, 64)
    b = source.part(32, np.int8, 32)
    b16 = source.part(32, np.int16, 16)
    u8 = source.part(0, np.uint8, 16)
    a16 = source.part(0, np.int16, 16)
    a32 = source.part(0, np.int32, 8)
    bits = spread(a[:8])
    quads = np.stack([a[:32], b]).reshape(2, 2, 2, 8)
    expected = {
        "broadcast_4": np.tile(a[3:7], 8), "broadcast_16": np.tile(a[5:21], 2),
        "broadcast_two_4": np.concatenate([np.tile(a[1:5], 4), np.tile(a[9:13], 4)]),
        "broadcast_i32": np.tile(a[7:11], 8), "load_two": np.concatenate([a[1:17], b[1:17]]),
        "byte_each_4": np.repeat(a[:8], 4), "word_each_4": np.repeat(a16[:4], 4),
        "interleave_low": np.stack([a16, b16], 1).reshape(2, 16)[:, :8].ravel(),
        "interleave_high": np.stack([a[:32], b], 1).reshape(2, 32)[:, 16:].ravel(),
        "half_lane0": np.repeat(a16[[0, 8]], 8), "half_lane5": np.repeat(a16[[5, 13]], 8),
        "high_half_i8": np.concatenate([a[16:32], a[:16]]), "low_half_i16": a16[:8],
        "high_half_i16": a16[8:],
        "even_quads": quads[:, :, 0].swapaxes(0, 1).ravel(),
        "odd_quads": quads[:, :, 1].swapaxes(0, 1).ravel(),
        "each_twice": np.repeat(a16[:8], 2),
        "even_then_odd": np.concatenate([a[:16:2], a[1:16:2], a[:16]]),
        "join": np.concatenate([a[:16], b[:16]]),
        "i32x8_of_i32x4": np.concatenate([a32[:4], np.zeros(4, np.int32)]),
        "widen_8": u8[:8].astype(np.int16), "four_u32": a32[[3, 2, 1, 0, 0, 1, 2, 3]],
        "widen_i8": a[:16].astype(np.int16), "widen_u8": u8.astype(np.int16),
        "i32_of_i16": a16[:8].astype(np.int32), "as_i16x16": a16, "bits_as_16": bits[:32],
        "bits_as_16_low": np.concatenate([bits[:16], bits[32:48]]),
        "bits_as_16_high": np.concatenate([bits[16:32], bits[48:]]),
        "store_fours": np.concatenate([a[:32:4], a16[::2].copy().view(np.int8)]),
        "rolled": np.array([77], np.int64),
    }  # fmt: skip
    assert_equal(results(simd_kernels.placements, source), expected)


def test_lanes_of_floats(source: Input) -> None:
    x, y, z = (source.part(offset, np.float32, 8) for offset in (128, 160, 192))
    out = results(simd_kernels.floats, source)
    halves = x[:4] + x[4:]
    quarters = halves[:2] + halves[2:]
    expected = {
        "fadd": x + y, "fsub": x - y, "fmul": x * y, "fdiv": x / y,
        "fma": out[128:160].view(np.float32),
        "fmax": np.maximum(x, y), "fmin": np.minimum(x, y), "fabs": np.abs(x),
        "f32_of_i32": source.part(0, np.int32, 8).astype(np.float32),
        "round_to_i32": np.rint(x * np.float32(1000)).astype(np.int32),
        "load_i8_as_f32": source.part(0, np.int8, 8).astype(np.float32),
        "sum": quarters[0] + quarters[1],
        "max": x.max(),
    }  # fmt: skip
    assert_equal(out, expected)
    exact = x.astype(np.float64) * y + z
    np.testing.assert_allclose(
        expected["fma"], exact, rtol=0, atol=2 * np.spacing(np.abs(x * y).max())
    )


SPECIAL_HALVES = np.array([0.0, -0.0, 6e-8, -6.1e-5, 65504.0, np.inf, -np.inf, np.nan], np.float16)
SPECIAL_FLOATS = np.array([0.0, -0.0, 65519.99, 65520.0, -1e-8, 3e-8, 6.1e-5, np.inf], np.float32)


@pytest.mark.parametrize("special", [False, True])
def test_loading_and_storing_half_floats(source: Input, special: bool) -> None:
    if special:
        source.memory[224:240] = SPECIAL_HALVES.view(np.uint8)
        source.memory[128:160] = SPECIAL_FLOATS.view(np.uint8)
    halves = source.part(224, np.float16, 16)
    x = source.part(128, np.float32, 8)
    upper = (source.part(224, np.uint16, 16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float16)
    expected = {
        "load_f16x8": halves[:8].astype(np.float32), "load_bf16x8": upper[:8],
        "load_f16x8_strided": halves[::2].astype(np.float32), "load_f16": np.float32(halves[0]),
        "load_bf16": upper[0],
        "halves_of_two": np.repeat(halves[:2], 4).astype(np.float32),
        "store_f16": narrow[:1].view(np.uint16),
        "round_to_f16": narrow[:1].astype(np.float32),
        "first_f32": np.repeat(halves[:1], 8).astype(np.float32),
        "fourth_f32": np.repeat(halves[3:4], 8).astype(np.float32),
    }  # fmt: skip
    assert_equal(results(simd_kernels.halves, source), expected)


def test_transpose_turns_rows_into_columns(source: Input) -> None:
    groups = source.part(0, np.int32, 64).reshape(8, 8)
    actual = results(simd_kernels.transposed, source, 256).view(np.int32).reshape(8, 8)
    np.testing.assert_array_equal(actual, groups.T)


def test_registers_that_hold_two_rows(source: Input) -> None:
    first, b, c = (source.part(offset, np.int8, 32) for offset in (0, 32, 64))
    a = np.concatenate([first, c])
    twice = np.concatenate([b, b])
    a16 = a.view(np.int16)
    products = neighbours(a16.astype(np.int64) * twice.view(np.int16)).astype(np.int32)
    quarters = a.view(np.uint8).reshape(4, 16)
    words = a16.reshape(4, 8)
    halves = source.part(224, np.float16, 8).astype(np.float32).reshape(2, 4)
    x = source.part(128, np.float32, 16)
    expected = {
        "load_two": a, "broadcast_32": twice,
        "maddubs_512": neighbours((a & 127).astype(np.int32) * twice).astype(np.int16),
        "maddwd_512": products, "add_twos": source.part(0, np.int32, 16) + products,
        "each_quarter_twice": first.reshape(2, 16).repeat(2, 0).ravel(),
        "byte0": quarters[:, 0].repeat(8).astype(np.int16),
        "byte7": quarters[:, 7].repeat(8).astype(np.int16),
        "lane0": words[:, 0].repeat(8), "lane7": words[:, 7].repeat(8),
        "widen_i8": first.astype(np.int16), "widen_u8": first.view(np.uint8).astype(np.int16),
        "even_then_odd": first.reshape(2, 8, 2).transpose(0, 2, 1).ravel(),
        "join": np.concatenate([first, b]).view(np.int16),
        "first_of_two": halves[:, 0].repeat(8), "fourth_of_two": halves[:, 3].repeat(8),
        "second_of_two": halves[:, 1].repeat(4),
        "broadcast_f32": np.full(16, x[0]), "low_half": x[:8], "high_half": x[8:],
        "add_twos_256": c.view(np.int32) + products[:8],
    }  # fmt: skip
    assert_equal(results(simd_kernels.two_rows, source), expected, step=64)


def turned(quarters: np.ndarray) -> np.ndarray:
    """Return int32 of (registers, quarters, 4), turned within each quarter."""
    return quarters.swapaxes(0, 2)


def f32_of_exponents(lanes: np.ndarray) -> np.ndarray:
    return np.ldexp(np.float32(1), np.maximum(lanes & 255, 2) - 128).astype(np.float32)


def with_bits(nibbles: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    bits = lanes[:, None] >> 20 + np.arange(4) & 1
    return (nibbles + 16 * bits.ravel()).astype(np.int8)


def test_blocks_are_turned_into_lanes(source: Input) -> None:
    words = source.part(0, np.int32, 64).reshape(4, 4, 4)
    halves = source.part(224, np.float16, 16).astype(np.float32)
    nibbles = source.part(96, np.int8, 32)
    table = np.arange(-120, 120, 15, dtype=np.int8)
    pairs = words[::2].swapaxes(0, 1)
    heads = pairs[0].ravel()
    lanes = turned(pairs)
    expected = {
        "turned": lanes, "turned_heads": lanes[:2], "f32_of_low_f16": halves[::2],
        "f32_of_high_f16": halves[1::2], "f32_of_exponents": f32_of_exponents(heads),
        "with_fifth_bits": with_bits(nibbles, heads), "table_of_16": table[nibbles],
    }  # fmt: skip
    joined = b"".join(np.ascontiguousarray(value).tobytes() for value in expected.values())
    actual = results(simd_kernels.turned_pairs, source)
    assert_equal(actual, {"all": np.frombuffer(joined, np.uint8)})


def test_blocks_of_two_rows_are_turned_into_lanes(source: Input) -> None:
    words = source.part(0, np.int32, 64).reshape(4, 4, 4)
    halves = np.tile(source.part(224, np.float16, 16).astype(np.float32), 2)
    nibbles = np.tile(source.part(96, np.int8, 32), 2)
    table = np.arange(-120, 120, 15, dtype=np.int8)
    quarters = words.swapaxes(0, 1)
    heads = quarters[0].ravel()
    lanes = turned(quarters)

    def strided(stride: int) -> np.ndarray:
        columns = [row + stride * k // 2 for row in (0, 32) for k in range(8)]
        shifts = np.array([8 * (stride * k % 2) for k in range(8)] * 2)
        return (source.part(0, np.uint16, 160)[columns].astype(np.int32) >> shifts).astype(np.int32)

    expected = {
        "turned": lanes, "turned_heads": lanes[:2], "f32_of_low_f16": halves[::2],
        "f32_of_high_f16": halves[1::2], "f32_of_exponents": f32_of_exponents(heads),
        "with_fifth_bits": with_bits(nibbles, heads), "table_of_16": table[nibbles],
        "broadcast_f32x8": np.tile(source.part(128, np.float32, 8), 2), "as_i32x16": heads,
        "strided_words_of_two, 18": strided(18), "17": strided(17),
        "maddwd_512": -8 * heads.view(np.int16)[::2].astype(np.int32),
    }  # fmt: skip
    joined = b"".join(np.ascontiguousarray(value).tobytes() for value in expected.values())
    actual = results(simd_kernels.turned_fours, source)
    assert_equal(actual, {"all": np.frombuffer(joined, np.uint8)})


def test_blocks_of_32_bytes_are_turned_into_lanes() -> None:
    memory = np.random.default_rng(4).integers(0, 256, 512).astype(np.uint8)
    out = np.zeros(512, np.uint8)
    kernel = kernel_call.KERNEL(simd_kernels.turned_eights.address)
    kernel(memory.ctypes.data, out.ctypes.data, 0)
    rows = memory.view(np.int32).reshape(2, 8, 8)
    np.testing.assert_array_equal(out.view(np.int32).reshape(8, 2, 8), rows.transpose(2, 0, 1))

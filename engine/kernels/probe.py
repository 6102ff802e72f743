"""Memory read and nothing else, and time kept by a chain of operations: what bounds a decode step."""

from engine.jit import kernel
from engine.kernels.matvec import PAGE_AHEAD_BYTES, ask_page
from engine.kernels.records import PROBE as F
from engine.kernels.share import share
from engine.simd import load_i8x32, load_i64, prefetch_l2, splat_i8x32, store_i8x32, store_i64, xor

FAR_BYTES, NEAR_BYTES = 8192, 1024


@kernel
def read_all(op, thread, n_threads):
    """Every thread reads one contiguous share in one place or four, as a decode kernel does."""
    n_places = load_i64(op + F.n_places)
    ahead = FAR_BYTES if n_places == 1 else NEAR_BYTES
    first, last = share(load_i64(op + F.n_bytes), 4096, thread, n_threads)
    address, each = load_i64(op + F.address) + first, (last - first) // n_places
    a, b, c, d = splat_i8x32(0), splat_i8x32(0), splat_i8x32(0), splat_i8x32(0)
    for i in range(0, each, 128):
        for place in range(n_places):
            at = address + place * each + i
            ask_page(at + PAGE_AHEAD_BYTES, 128)
            prefetch_l2(at + ahead)
            prefetch_l2(at + ahead + 64)
            a, b = xor(a, load_i8x32(at)), xor(b, load_i8x32(at + 32))
            c, d = xor(c, load_i8x32(at + 64)), xor(d, load_i8x32(at + 96))
    store_i8x32(load_i64(op + F.out) + 128 * thread, xor(xor(a, b), xor(c, d)))


@kernel
def count_steps(op, thread, n_threads):
    """Take ``n_bytes`` steps of xorshift, each a chain of six operations of one cycle: three shifts, three xors."""
    x = load_i64(op + F.out)
    for _ in range(load_i64(op + F.n_bytes)):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    store_i64(load_i64(op + F.address), x)

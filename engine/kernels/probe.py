"""Memory read and nothing else, and time kept by a chain of operations: what bounds a decode
step."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.matvec import PAGE_AHEAD_BYTES, ask_page
from engine.kernels.records import PROBE as F
from engine.kernels.share import share

FAR_BYTES = 8192
NEAR_BYTES = 1024


@kernel
def read_all(op, thread, n_threads):
    """Every thread reads one contiguous share in one place or four, as a decode kernel does."""
    n_places = vec.load_i64(op + F.n_places)
    ahead = FAR_BYTES if n_places == 1 else NEAR_BYTES
    first, last = share(vec.load_i64(op + F.n_bytes), 4096, thread, n_threads)
    address = vec.load_i64(op + F.address) + first
    each = (last - first) // n_places
    a = vec.splat_i8x32(0)
    b = vec.splat_i8x32(0)
    c = vec.splat_i8x32(0)
    d = vec.splat_i8x32(0)
    for i in range(0, each, 128):
        for place in range(n_places):
            at = address + place * each + i
            ask_page(at + PAGE_AHEAD_BYTES, 128)
            vec.prefetch_l2(at + ahead)
            vec.prefetch_l2(at + ahead + 64)
            a = vec.xor(a, vec.load_i8x32(at))
            b = vec.xor(b, vec.load_i8x32(at + 32))
            c = vec.xor(c, vec.load_i8x32(at + 64))
            d = vec.xor(d, vec.load_i8x32(at + 96))
    vec.store_i8x32(vec.load_i64(op + F.out) + 128 * thread, vec.xor(vec.xor(a, b), vec.xor(c, d)))


@kernel
def count_steps(op, thread, n_threads):
    """Take ``n_bytes`` steps of xorshift, each a chain of six operations of one cycle: three
    shifts, three xors."""
    x = vec.load_i64(op + F.out)
    for _ in range(vec.load_i64(op + F.n_bytes)):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    vec.store_i64(vec.load_i64(op + F.address), x)

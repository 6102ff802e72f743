"""Probes of a machine: memory that is only read, and a chain of operations that tells the clock."""

from engine import simd as vec
from engine.jit import kernel
from engine.kernels.matvec import PAGE_AHEAD_BYTES, prefetch_page
from engine.kernels.records import PROBE as F
from engine.kernels.share import share

FAR_BYTES = 8192
NEAR_BYTES = 1024


@kernel
def read_all(op, thread, n_threads):
    """Read a contiguous share in one stream or four, as a decode kernel does; every thread has its
    share."""
    n_streams = vec.load_i64(op + F.n_streams)
    ahead = FAR_BYTES if n_streams == 1 else NEAR_BYTES
    first, last = share(vec.load_i64(op + F.n_bytes), 4096, thread, n_threads)
    start = vec.load_i64(op + F.address) + first
    stream_bytes = (last - first) // n_streams
    a = vec.splat_i8x32(0)
    b = vec.splat_i8x32(0)
    c = vec.splat_i8x32(0)
    d = vec.splat_i8x32(0)
    for i in range(0, stream_bytes, 128):
        for stream in range(n_streams):
            address = start + stream * stream_bytes + i
            prefetch_page(address + PAGE_AHEAD_BYTES, 128)
            vec.prefetch_l2(address + ahead)
            vec.prefetch_l2(address + ahead + 64)
            a = vec.xor(a, vec.load_i8x32(address))
            b = vec.xor(b, vec.load_i8x32(address + 32))
            c = vec.xor(c, vec.load_i8x32(address + 64))
            d = vec.xor(d, vec.load_i8x32(address + 96))
    vec.store_i8x32(vec.load_i64(op + F.out) + 128 * thread, vec.xor(vec.xor(a, b), vec.xor(c, d)))


@kernel
def count_steps(op, thread, n_threads):
    """Compute ``n_bytes`` steps of xorshift.

    A step is a chain of six operations of one cycle: three shifts and three xors.
    """
    x = vec.load_i64(op + F.out)
    for _ in range(vec.load_i64(op + F.n_bytes)):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    vec.store_i64(vec.load_i64(op + F.address), x)

"""The four kernels of a weight type: one call says what its module has."""

from engine.jit import kernels_of
from engine.kernels.embed import embed_rows
from engine.kernels.tiles import matmul_tiles


def type_kernels(module, block_size, block_bytes, dequantize, rows, unpack_row, tiles):
    """Make ``embed``, ``matvec``, ``small_batch`` and ``matmul``, as ``engine.quants.base``
    describes them.

    Args:
        block_size, block_bytes: weights of a block, and its bytes.
        dequantize: as ``embed_rows`` takes it.
        rows: (matvec, few).
        unpack_row, tiles: as ``matmul_tiles`` takes them.
    """
    matvec, small_batch = rows
    embed = embed_rows(dequantize, block_size, block_bytes)
    matmul = matmul_tiles(unpack_row, tiles, tiles.n_cols // block_size * block_bytes)
    return kernels_of(module, embed=embed, matvec=matvec, small_batch=small_batch, matmul=matmul)

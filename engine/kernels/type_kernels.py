"""The four kernels of a weight type."""

from engine.jit import kernels_of
from engine.kernels.embed import embed_rows
from engine.kernels.tiles import matmul_tiles


def type_kernels(module, block_size, block_bytes, dequantize, rows, unpack_row, tiles):
    """Make ``embed``, ``matvec``, ``small_batch`` and ``matmul``, as ``engine.quants.base``
    describes them.

    Args:
        block_size, block_bytes: Weights and bytes of a block.
        dequantize: As in ``embed_rows``.
        rows: (matvec, small_batch).
        unpack_row, tiles: As in ``matmul_tiles``.
    """
    matvec, small_batch = rows
    embed = embed_rows(dequantize, block_size, block_bytes)
    matmul = matmul_tiles(unpack_row, tiles, tiles.n_cols // block_size * block_bytes)
    return kernels_of(module, embed=embed, matvec=matvec, small_batch=small_batch, matmul=matmul)

"""Vector registers as values, and the operations that kernels are written in."""

from engine.simd.arith import *  # noqa: F403
from engine.simd.arrays import *  # noqa: F403
from engine.simd.blocks import *  # noqa: F403
from engine.simd.group_sums import *  # noqa: F403
from engine.simd.memory import *  # noqa: F403
from engine.simd.tables import *  # noqa: F403
from engine.simd.tile_registers import *  # noqa: F403
from engine.simd.turned import *  # noqa: F403
from engine.simd.two_rows import *  # noqa: F403

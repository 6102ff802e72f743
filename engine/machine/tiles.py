"""AMX's tile registers, which Linux grants on request: Documentation/arch/x86/xstate.rst."""

import ctypes
import sys


def may_be_used() -> bool:
    """Request the tile registers; False if the system does not grant them."""
    arch_prctl = 158
    permission = 0x1023
    tile_data = 18
    return sys.platform == "linux" and not ctypes.CDLL(None).syscall(
        arch_prctl, permission, tile_data
    )

"""AMX's registers, which a process gets when it asks Linux: Documentation/arch/x86/xstate.rst."""

import ctypes
import sys


def may_be_used() -> bool:
    """Ask for them; False where the system does not give them."""
    arch_prctl = 158
    permission = 0x1023
    tile_data = 18
    return sys.platform == "linux" and not ctypes.CDLL(None).syscall(
        arch_prctl, permission, tile_data
    )

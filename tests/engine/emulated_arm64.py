"""A plugin that compiles kernels for ARM64 and runs them in an emulator (``unicorn``) instead of on
this processor.

The emulated processor sees this process's memory at the same addresses, so whatever calls kernels
by address through ``kernel_call.KERNEL`` works as it stands. Entries that Python calls cannot run.
Imported before ``engine``, with ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` set
(``arm64.compiled_for``).
"""

from __future__ import annotations

import threading
from bisect import bisect
from collections.abc import Callable

import numpy as np
import unicorn
from unicorn import arm64_const as arm

from tests.engine import arm64_target as arm64_target  # before ``engine``
from tests.engine import kernel_call

PAGE_BYTES = 4096
STACK_BYTES = 1 << 20
FP_ENABLED = 3 << 20
BACK = 0x1000
"""Return address of emulated calls; no memory is mapped there."""

_ALONE = threading.Lock()
"""Lock for one kernel at a time: exclusive accesses of two emulated processors would not see each
other."""


class Processor:
    """Emulated core with a stack and every feature that the emulator knows."""

    def __init__(self) -> None:
        self.core = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.core.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        self.core.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._map)
        self.core.reg_write(arm.UC_ARM64_REG_CPACR_EL1, FP_ENABLED)
        self._stack = np.zeros(STACK_BYTES, np.uint8)
        self._own: list[tuple[int, int]] = []
        self._pages: set[int] = set()

    def call(self, address: int, arguments: tuple[int, ...]) -> None:
        """Run compiled code until it returns.

        Raises:
            unicorn.UcError: an instruction that the model does not know, or an address that this
            process does not have.
        """
        stack = self._stack.ctypes.data
        self._own = _mapped()
        for register, value in (
            (arm.UC_ARM64_REG_SP, (stack + STACK_BYTES) // 16 * 16),
            (arm.UC_ARM64_REG_LR, BACK),
            *(
                (arm.UC_ARM64_REG_X0 + k, value & (1 << 64) - 1)
                for k, value in enumerate(arguments)
            ),
        ):
            self.core.reg_write(register, value)
        try:
            self.core.emu_start(address, BACK)
        finally:  # this process may give memory back and get other memory at the same place
            for page in self._pages:
                self.core.mem_unmap(page, PAGE_BYTES)
            self._pages.clear()

    def _map(
        self, core: unicorn.Uc, access: int, address: int, size: int, value: int, data: object
    ) -> bool:
        """Map the pages of an access into the emulated core."""
        for page in {
            byte_address // PAGE_BYTES * PAGE_BYTES
            for byte_address in (address, address + size - 1)
        } - self._pages:
            k = bisect(self._own, (page, 1 << 64)) - 1
            if k < 0 or page >= self._own[k][1]:
                return False
            core.mem_map_ptr(page, PAGE_BYTES, unicorn.UC_PROT_ALL, page)
            self._pages.add(page)
        return True


def _mapped() -> list[tuple[int, int]]:
    """Return the readable memory ranges of this process, in order."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    return [
        (int(a, 16), int(b, 16))
        for a, b in (line[0].split("-") for line in lines if line[1][0] == "r")
    ]


PROCESSOR = Processor()


def function(address: int) -> Callable[..., None]:
    """Return a function that calls the compiled code at an address."""

    def call(*arguments: int) -> None:
        with _ALONE:
            PROCESSOR.call(address, arguments)

    return call


kernel_call.KERNEL = function

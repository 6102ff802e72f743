"""Machine code that was built ahead: linked from the pack for this processor, without numba."""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module
from typing import Any

from llvmlite import binding as llvm

from engine.machine.packs import choice, source_hash


@cache
def _linker() -> Any:
    """Return LLVM's linker. Linked code stays until the process ends."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())


_addresses: dict[str, int | None] = {}
_linking = threading.Lock()


def linked(kernel_name: str) -> int | None:
    """Return the address of a kernel that was built ahead; None if it must be compiled. Any thread
    may call it.

    Args:
        kernel_name: module and function, such as ``engine.quants.q4_k:matvec``.
    """
    with _linking:
        if kernel_name not in _addresses:
            _addresses[kernel_name] = _link(kernel_name)
        return _addresses[kernel_name]


def _link(kernel_name: str) -> int | None:
    kernel = choice().kernels.get(kernel_name)
    if kernel is None or kernel.source != source_hash(kernel_name.partition(":")[0]):
        return None
    if not all(map(llvm.address_of_symbol, kernel.needs)):
        return None
    _linker().add_object_file(llvm.object_file.ObjectFileRef.from_data(kernel.code))
    _linker().finalize_object()
    return int(_linker().get_function_address(kernel_name)) or None


def address_of(kernel_name: str) -> int:
    """Return the address of a kernel, which is linked, or compiled by numba."""
    address = linked(kernel_name)
    if address is None:
        module, name = kernel_name.split(":")
        address = getattr(import_module(module), name).compiled.address
    return int(address)

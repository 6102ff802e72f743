"""Make numba compile for ARM64 on any processor; to be imported before ``engine``, in a process of its own.

``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` say for which one. What was compiled can be read, or emulated
(``emulated_arm64``), and does not run here.
"""

import llvmlite.binding as llvm

TRIPLE = "aarch64-unknown-linux-gnu"

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.get_process_triple = lambda: TRIPLE
llvm.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(TRIPLE))

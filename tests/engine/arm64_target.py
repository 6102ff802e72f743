"""Make numba compile for ARM64 on any processor; to be imported before ``engine``, in a process of
its own.

``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` say for which one. What was compiled can be read, or
emulated (``emulated_arm64``), and does not run here.
"""

from engine.build_ahead import aim_at

TRIPLE = "aarch64-unknown-linux-gnu"
aim_at(TRIPLE)

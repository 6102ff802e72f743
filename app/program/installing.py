"""The command that installs a further package into this installation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def install_command(package: str) -> str:
    """Return the command that adds a package to the Python of this program."""
    if os.path.isfile(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject {shlex.quote(os.path.basename(sys.prefix))} {package}"
    python = shlex.quote(sys.executable)
    has_pip = os.path.isfile(os.path.join(os.path.dirname(sys.executable), "pip"))
    if not has_pip and (
        shutil.which("uv") or os.path.isfile(os.path.join(sys.prefix, "uv-receipt.toml"))
    ):
        return f"uv pip install --python {python} {package}"
    return f"{python} -m pip install {package}"

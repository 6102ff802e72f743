"""The system around this Linux: Windows (WSL), ChromeOS (Crostini) or Android (Termux).

Nothing here raises. All paths are below a root directory, so that tests can imitate any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from pathlib import Path

from app.machine.sensors.cached_reading import or_none
from app.text.record import record

ROOT = Path("/")
_MAX_CONFIG_BYTES = 64 << 10
_MAX_FOLDERS = 100
"""Limit on the home folders of Windows in which its limits are looked for."""
_SECTION = re.compile(r"(?ims)^\s*\[wsl2\]\s*$(.*?)(?=^\s*\[|\Z)")
_MEMORY = re.compile(r"(?im)^\s*memory\s*=\s*(\d{1,9}\s*[kmgt]?b)\s*(?:#.*)?$")


class HostKind(str, Enum):
    """Kind of system that runs this Linux."""

    WSL1 = "WSL 1"
    WSL2 = "WSL 2"
    CROSTINI = "Crostini"
    PROOT = "Linux in Termux"
    TERMUX = "Termux"


@record
class HostSystem:
    """System that runs this Linux, and the limit that it sets on memory."""

    kind: HostKind | None = None
    """Kind of system; None if Linux runs by itself or in another virtual machine."""
    memory_limit: str | None = None
    """Limit in Windows' file .wslconfig, such as "12GB"; "" if it sets none, None if unknown."""


def read_host_system(environ: Mapping[str, str], root: Path = ROOT) -> HostSystem:
    """Return the system that runs this Linux."""
    return or_none(lambda: _host_system(environ, root)) or HostSystem()


def _host_system(environ: Mapping[str, str], root: Path) -> HostSystem:
    kernel = _text(root / "proc/sys/kernel/osrelease").lower()
    if "microsoft" in kernel:
        if kernel.startswith(("3.4", "4.4")):
            return HostSystem(HostKind.WSL1)
        return HostSystem(HostKind.WSL2, or_none(lambda: _memory_limit(root)))
    is_crostini = (root / "opt/google/cros-containers").is_dir()
    if is_crostini or (root / "dev/.cros_milestone").exists():
        return HostSystem(HostKind.CROSTINI)
    is_in_termux = "com.termux" in environ.get("PREFIX", "") or "TERMUX_VERSION" in environ
    if is_in_termux or (root / "data/data/com.termux/files/usr").is_dir():
        # Linux distributions have this file, and Android does not.
        if (root / "etc/os-release").is_file():
            return HostSystem(HostKind.PROOT)
        return HostSystem(HostKind.TERMUX)
    return HostSystem()


def _memory_limit(root: Path) -> str | None:
    """Return the limit that a user of Windows has set; "" if none is set, None if unknown."""
    homes = list(islice((root / "mnt/c/Users").iterdir(), _MAX_FOLDERS))
    configs = [_text(home / ".wslconfig") for home in homes if not home.is_symlink()]
    for config in configs:
        section = _SECTION.search(config)
        limit = _MEMORY.search(section[1]) if section else None
        if limit:
            return limit[1].upper().replace(" ", "")
    return ""


def _text(path: Path) -> str:
    """Return the beginning of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""

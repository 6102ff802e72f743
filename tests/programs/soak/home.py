"""The directory that a long run lives in: settings, models, what the program saves, and the way to
start it there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import platformdirs

from app.conversations.store import Store
from app.program.bundled_model import starter_file
from tests.engine import tiny_gguf
from tests.programs.soak.chat import Chat

SIZES = ((80, 24), (100, 30), (120, 40), (90, 50))
"""Sizes at which the screen can be read."""
IN_NAMESPACE = "JALOPY_SOAK_NAMESPACE"
"""Set where file systems may be mounted that no one else sees."""
_DISK_BYTES = 512 << 20
_SETTINGS = """
context_size = 2048
kv_states_quota_gb = 0.06
[sampling]
max_tokens = 500
"""


class Home:
    """All files of a run below one directory, but for the compiled kernels, which stay the
    user's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.state = root / "state"
        for directory in (
            self.work,
            self.state,
            root / "config" / "jalopy",
            root / "home",
            root / "data",
        ):
            directory.mkdir(parents=True)
        (root / "config" / "jalopy" / "settings.toml").write_text(_SETTINGS, encoding="utf-8")
        self.babbler = tiny_gguf.write(
            self.work / "babbler.gguf",
            quant="Q8_0",
            dim=256,
            hidden_dim=768,
            n_layers=6,
            context_length=4096,
        )
        self.starter = starter_file()
        self.has_disk = bool(os.environ.get(IN_NAMESPACE)) and self._mount(f"size={_DISK_BYTES}")
        kernels = os.environ.get("JALOPY_CACHE_DIR") or platformdirs.user_cache_dir("jalopy")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "JALOPY_"))
        }
        self.environ = {
            **{
                name: value
                for name, value in inherited.items()
                if name not in ("COLUMNS", "LINES", "NO_COLOR", "DISPLAY")
            },
            "TERM": "xterm-256color",
            "HOME": str(root / "home"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(self.state),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "JALOPY_CACHE_DIR": kernels,
        }
        program = Path(sys.executable).with_name("jalopy")
        self.command = [str(program)] if program.exists() else [sys.executable, "-m", "app"]

    @property
    def store(self) -> Store:
        """The saved conversations."""
        return Store(self.state / "jalopy" / "conversations")

    @property
    def log(self) -> Path:
        """Where the program writes the tracebacks of its bugs."""
        return self.state / "jalopy" / "jalopy.log"

    def models(self) -> list[str]:
        """Return what models can be named."""
        return ["starter", str(self.babbler)]

    def start(self, rng: Random) -> Chat:
        """Start the program as its user does: with a model, or with the last one."""
        arguments = rng.choice([[], *([model] for model in self.models())])
        return Chat([*self.command, *arguments], self.environ, self.work, rng.choice(SIZES))

    # ---- the disk

    def fill_disk(self) -> None:
        """Leave no room at all."""
        statistics = os.statvfs(self.state)
        used = (statistics.f_blocks - statistics.f_bfree) * statistics.f_frsize
        self._mount(f"remount,size={max(used, 4096)}")

    def free_disk(self) -> None:
        """Give the room back."""
        self._mount(f"remount,rw,size={_DISK_BYTES}")

    def make_read_only(self) -> bool:
        """Let nothing be written; False where that cannot be had."""
        return self._mount("remount,ro")

    def unmount(self) -> None:
        """Let go of the small file system, with all that is saved on it."""
        if self.has_disk:
            subprocess.run(["umount", str(self.state)], capture_output=True, check=False)

    def _mount(self, options: str) -> bool:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.state)],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

"""The system around this Linux, from trees that imitate it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.machine.doctor.host_system import HostKind, HostSystem, read_host_system

WSL2 = "5.15.167.4-microsoft-standard-WSL2"
CONFIG = "mnt/c/Users/ada/.wslconfig"
OS_RELEASE = {"etc/os-release": "ID=debian"}


def lay_out(root: Path, kernel: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/sys/kernel/osrelease": kernel, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("kernel", "files", "kind"),
    [
        ("6.1.0-13-amd64", OS_RELEASE, None),
        ("4.4.0-19041-Microsoft", {}, HostKind.WSL1),
        ("4.19.84-microsoft-standard", {}, HostKind.WSL2),
        (WSL2, {}, HostKind.WSL2),
        ("6.6.46", {"opt/google/cros-containers/bin/garcon": ""}, HostKind.CROSTINI),
        ("6.6.46", {"dev/.cros_milestone": "128"}, HostKind.CROSTINI),
        ("4.14.113", {"data/data/com.termux/files/usr/bin/sh": ""}, HostKind.TERMUX),
        ("4.14.113", {"data/data/com.termux/files/usr/bin/sh": "", **OS_RELEASE}, HostKind.PROOT),
    ],
)
def test_the_system_is_read(
    tmp_path: Path, kernel: str, files: dict[str, str], kind: HostKind | None
) -> None:
    assert read_host_system({}, lay_out(tmp_path, kernel, files)).kind is kind


@pytest.mark.parametrize(
    "environ", [{"TERMUX_VERSION": "0.118"}, {"PREFIX": "/data/data/com.termux/files/usr"}]
)
def test_termux_is_known_by_its_variables(tmp_path: Path, environ: dict[str, str]) -> None:
    assert read_host_system(environ, tmp_path) == HostSystem(HostKind.TERMUX)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ("[wsl2]\nmemory=12GB\nswap=0\n", "12GB"),
        ("[WSL2]\r\nprocessors=4\r\n memory = 6 gb # half\r\n", "6GB"),
        ("[experimental]\nmemory=1GB\n[wsl2]\nprocessors=4\n", ""),
        ("[wsl2]\n#memory=4GB\n", ""),
        ("memory=4GB\n", ""),
        ("[wsl2]\nmemory=all\n", ""),
        ("\xff\x00", ""),
    ],
)
def test_the_limit_of_memory_is_read(tmp_path: Path, config: str, limit: str) -> None:
    root = lay_out(tmp_path, WSL2, {CONFIG: config, "mnt/c/Users/Public/x": ""})
    assert read_host_system({}, root) == HostSystem(HostKind.WSL2, limit)


def test_the_limit_is_unknown_without_the_disk_of_windows(tmp_path: Path) -> None:
    root = lay_out(tmp_path, WSL2, {})
    assert read_host_system({}, root) == HostSystem(HostKind.WSL2, None)
    lay_out(tmp_path, WSL2, {"mnt/c/Users/ada/Desktop/x": ""})
    assert read_host_system({}, root) == HostSystem(HostKind.WSL2, "")

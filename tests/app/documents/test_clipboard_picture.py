"""A picture from the clipboard, by programs that stand in for those of desktops."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.documents import clipboard_picture
from app.documents.clipboard_picture import read_picture
from app.program.refusals import Refusal

WAYLAND = {"WAYLAND_DISPLAY": "wayland-0"}
X11 = {"DISPLAY": ":0"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(
        clipboard_picture.shutil,
        "which",
        lambda name: str(directory / name) if (directory / name).exists() else None,
    )
    return directory


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_each_desktop_has_its_program(programs: Path) -> None:
    list_or_print = (
        'case "$*" in *{list}*) echo text/plain; echo image/png;; *image/png) printf P;; esac'
    )
    write(programs / "wl-paste", list_or_print.format(list="--list-types"))
    write(programs / "xclip", list_or_print.format(list="TARGETS"))
    assert read_picture(WAYLAND) == b"P"
    assert read_picture(X11) == b"P"
    write(programs / "pngpaste", "printf M")
    assert read_picture({}) == b"M"


def test_a_clipboard_without_a_picture_is_named(programs: Path) -> None:
    write(programs / "wl-paste", "echo text/plain")
    with pytest.raises(Refusal, match="the clipboard has no picture"):
        read_picture(WAYLAND)
    write(programs / "wl-paste", "exit 1")
    with pytest.raises(Refusal, match="the clipboard has no picture"):
        read_picture(WAYLAND)


def test_a_missing_program_is_named(programs: Path) -> None:
    with pytest.raises(Refusal, match="needs wl-paste"):
        read_picture(WAYLAND)
    with pytest.raises(Refusal, match="needs xclip"):
        read_picture(X11)
    with pytest.raises(Refusal, match="no clipboard can be reached"):
        read_picture({})


def test_a_huge_clipboard_is_refused(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(programs / "pngpaste", "head -c 5000000 /dev/zero")
    monkeypatch.setattr(clipboard_picture, "MOST_BYTES", 1 << 20)
    with pytest.raises(Refusal, match="more than 1 MiB"):
        read_picture({})


def test_a_clipboard_that_hangs_is_left(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(programs / "pngpaste", "exec sleep 60")
    monkeypatch.setattr(clipboard_picture, "PATIENCE_S", 0.05)
    with pytest.raises(Refusal, match="has not answered"):
        read_picture({})

"""``glance`` recognises formats without checking the entire file."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import FileUnreadableError, GGUFError
from engine.gguf import magic
from tests.engine import tiny_gguf

ROOT = Path(__file__).resolve().parents[3]


def test_a_truncated_gguf_file_passes(tmp_path: Path) -> None:
    magic.glance(tiny_gguf.write(tmp_path / "m.gguf"))
    (tmp_path / "cut.gguf").write_bytes(tiny_gguf.build()[:100])
    magic.glance(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (b"PK\x03\x04", "zip archive"),
        (b"<html>", "web page"),
        (b'<?xml version="1.0"?><Error>', "XML message of a server"),
        (
            b'{"error":"Access to model org/x is restricted"}',
            "is JSON, not a model: .{.error.:.Access to model",
        ),
        (
            b"Invalid username or password.",
            "is a text, not a model: 'Invalid username or password.' .an error",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa", "Git LFS pointer"),
        (b"\x1f\x8b\x08\x00", "packed with gzip"),
        (b"\x28\xb5\x2f\xfd\x04", "packed with zstd"),
        (b"\x80\x02}q\x00.", "Python pickle"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x1c\0\0\0TFL3", "TFLite"),
        (b"\x3c\0\0\0\0\0\0\0{}", "safetensors file, .*jalopy convert"),
        (bytes(64), "begins with zeros"),
        (b"GG", "truncated"),
        (b"hell\x00\x01", "'hell'"),
    ],
)
def test_another_format_is_named(tmp_path: Path, start: bytes, problem: str) -> None:
    (tmp_path / "m.gguf").write_bytes(start)
    with pytest.raises(GGUFError, match=problem):
        magic.glance(tmp_path / "m.gguf")


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(FileUnreadableError):
            magic.glance(path)


def test_a_glance_imports_nothing_heavy() -> None:
    code = (
        "import sys, engine.gguf.magic; print(sorted({'numpy', 'numba', 'psutil'} & "
        "set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

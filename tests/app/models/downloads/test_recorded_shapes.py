"""Parsing of recorded answers of the real hub (see ``recorded/README.md``)."""

from __future__ import annotations

import hashlib
import json
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.models.downloads import part_file, pull
from app.models.downloads.hub import RemoteFile, read_repository
from app.models.downloads.part_file import PartFile
from app.models.downloads.pull import DownloadRequest, choices_of, parse_request
from app.program import exit_codes
from app.program.settings import built_in_settings
from app.program.web import Response
from app.program.web_refusals import DownloadError
from tests.app.models.downloads.local_hub import REPOSITORY_SHAPE, LocalHub, recorded, status
from tests.app.models.downloads.pulling import NAME, REPOSITORY, client, content, get, refusal

OTHERS = "someone/Example-3B-GGUF"


def test_only_the_models_of_a_repository_are_offered(server: LocalHub) -> None:
    server.files[OTHERS] = {}
    server.extra[OTHERS] = REPOSITORY_SHAPE
    repository = read_repository(client(), OTHERS)
    assert (repository.parameters, repository.architecture, repository.licence) == (
        3212749888,
        "llama",
        "llama3.2",
    )
    assert not repository.is_gated
    files_by_type = {
        choice.quantization: [file.name for file in choice.files]
        for choice in choices_of(repository)
    }
    assert files_by_type == {
        "IQ4_XS": ["Example-3B-IQ4_XS.gguf"],
        "Q4_K_M": ["Example-3B-Q4_K_M.gguf"],
        "Q8_0": ["Example-3B-Q8_0.gguf"],
        "BF16": [f"Example-3B-BF16-0000{n}-of-00002.gguf" for n in (1, 2)],
    }
    (xet_backed,) = (file for file in repository.files if "Q4_K_M" in file.name)
    assert xet_backed.sha256 == "2" * 64
    (first, _) = (file for file in repository.files if "BF16" in file.name)
    assert first.url.endswith(f"/resolve/{REPOSITORY_SHAPE['sha']}/BF16/{first.name}")


def test_the_tag_of_the_content_server_is_not_the_hash(server: LocalHub, target: Path) -> None:
    assert get(target) == exit_codes.OK
    answer = server.answer("content", f"/{REPOSITORY}/{NAME}", {})
    assert len(answer.headers["ETag"].strip('"')) == 64
    assert (target / NAME).read_bytes() == content()


def test_a_file_with_another_hash_is_not_downloaded(server: LocalHub, target: Path) -> None:
    server.add(REPOSITORY, NAME, content())
    described = client().get_body(
        f"{server.address}/api/models/{REPOSITORY}/revision/main?blobs=true"
    )
    (sibling,) = (
        entry for entry in json.loads(described)["siblings"] if entry["rfilename"] == NAME
    )
    sibling["lfs"]["sha256"] = "a" * 64
    server.extra[REPOSITORY] = {"siblings": [sibling]}
    assert "the hub sends a different file" in str(refusal(target))


def test_a_renamed_repository_is_found_with_the_token(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.renamed["old/Name-GGUF"] = REPOSITORY
    assert get(target, "old/Name-GGUF") == exit_codes.OK
    assert [request.headers.get("authorization") for request in server.requests_to("hub")] == [
        "Bearer hf_secret"
    ] * 4
    assert all("authorization" not in request.headers for request in server.requests_to("content"))


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("missing", "", "not found (or private: set HF_TOKEN)"),
        ("missing-with-token", "hf_x", "repository not found: check the name"),
        ("bad-token", "hf_x", "or the token has no access"),
        ("no-revision", "", "does not have this revision"),
        ("gated", "", "gated: accept its terms on its page first, then set HF_TOKEN"),
        (
            "gated-with-token",
            "hf_x",
            "gated: accept its terms on its page first; this token has no access",
        ),
        ("disabled", "", "access to it is disabled"),
    ],
)
def test_the_kinds_of_refusal_are_distinguished(
    name: str,
    token: str,
    words: str,
    server: LocalHub,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    server.hub_faults.append(recorded(name))
    error = refusal(target)
    assert words in str(error)
    assert error.exit_code == exit_codes.UNREADABLE
    assert len(server.requests) == 1


def test_a_gated_repository_is_refused_after_one_request(
    server: LocalHub,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.extra[REPOSITORY] = {"gated": "manual"}
    assert "gated: accept its terms on its page first, then set HF_TOKEN" in str(refusal(target))
    assert len(server.requests) == 1
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert get(target) == exit_codes.OK
    assert "the account of your token must have accepted its terms" in capsys.readouterr().out


def test_a_gate_at_the_file_is_reported_in_one_line(server: LocalHub, target: Path) -> None:
    server.hub_faults += [lambda answer: None, recorded("gated")]
    assert "gated: accept its terms" in str(refusal(target))
    assert server.requests_to("content") == []


def test_a_disabled_repository_gets_no_more_requests(server: LocalHub, target: Path) -> None:
    server.extra[REPOSITORY] = {"disabled": True, "gated": "auto"}
    assert "the hub has disabled access" in str(refusal(target))


def test_an_expired_content_address_is_not_blamed_on_the_token(
    server: LocalHub, target: Path
) -> None:
    server.faults.append(status(403))
    assert "HF_TOKEN" not in str(refusal(target))


def test_a_rate_limit_waits_as_long_as_the_hub_requests(server: LocalHub, target: Path) -> None:
    server.hub_faults.append(recorded("limited"))
    pauses: list[float] = []
    assert get(target, web=client(pauses)) == exit_codes.OK
    assert pauses == [137.0]


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"RateLimit": '"default";r=50;t=30, "api";r=0;t=137'}, 137.0),
        ({"RateLimit": '"api";r=0;t=12', "Retry_After": "40"}, 40.0),
        ({"Retry_After": "Fri, 01 Jan 2016 00:00:00 GMT"}, 0.0),
        ({"Retry_After": "soon"}, 1.0),
        ({"RateLimit": ";t=;;r=0;t="}, 1.0),
    ],
)
def test_each_format_of_a_pause_is_understood(
    headers: dict[str, str], pause_s: float, server: LocalHub, target: Path
) -> None:
    server.hub_faults.append(status(429, **headers))
    pauses: list[float] = []
    assert get(target, web=client(pauses)) == exit_codes.OK
    assert pauses == [pause_s]


def test_longer_pauses_end_the_download(server: LocalHub, target: Path) -> None:
    server.hub_faults.append(status(429, Retry_After="3600"))
    assert "too many requests: try again in 1 h 0 min" in str(refusal(target))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://huggingface.co/a/b", DownloadRequest("a/b")),
        ("https://huggingface.co/a/b/", DownloadRequest("a/b")),
        ("https://huggingface.co/a/b/tree/v2", DownloadRequest("a/b", revision="v2")),
        (
            "https://huggingface.co/a/b/tree/refs%2Fpr%2F7",
            DownloadRequest("a/b", revision="refs/pr/7"),
        ),
        (
            "https://huggingface.co/a/b/blob/refs%2Fpr%2F7/x/y.gguf",
            DownloadRequest("a/b", file_path="x/y.gguf", revision="refs/pr/7"),
        ),
        (
            "https://hf.co/a/b/blob/main/x/y-Q8_0.gguf?download=true",
            DownloadRequest("a/b", file_path="x/y-Q8_0.gguf"),
        ),
        (
            "https://mirror.example/a/b/resolve/main/y.gguf",
            DownloadRequest("a/b", file_path="y.gguf"),
        ),
    ],
)
def test_copied_addresses_are_parsed(address: str, expected: DownloadRequest) -> None:
    assert parse_request(address, "https://mirror.example") == expected


@pytest.mark.parametrize(
    "path", ["", "/a", "/a/b/c", "/a/../b", "/a%2f../b", "/datasets/a/b", "/a/b/tree/../../c"]
)
def test_other_addresses_of_the_hub_are_refused(path: str) -> None:
    with pytest.raises(DownloadError):
        parse_request(f"https://huggingface.co{path}", "https://huggingface.co")


def test_a_resumed_download_has_the_same_revision(server: LocalHub, target: Path) -> None:
    page = f"{server.address}/{REPOSITORY}/tree/v2"
    assert pull.prepare(page, built_in_settings(), client(), directory=target).again == page
    page = f"{server.address}/{REPOSITORY}"
    assert (
        pull.prepare(page, built_in_settings(), client(), directory=target).again
        == f"{REPOSITORY}:Q8_0"
    )


def test_equal_names_in_two_folders_are_two_models(server: LocalHub, target: Path) -> None:
    for folder, seed in (("one", 1), ("two", 2)):
        server.add("someone/Twice-GGUF", f"{folder}/model-Q8_0.gguf", content(seed=seed))
    repository = read_repository(client(), "someone/Twice-GGUF")
    assert [len(choice.files) for choice in choices_of(repository)] == [1, 1]
    assert (
        get(target, f"{server.address}/someone/Twice-GGUF/blob/main/two/model-Q8_0.gguf")
        == exit_codes.OK
    )
    assert (target / "model-Q8_0.gguf").read_bytes() == content(seed=2)


@pytest.mark.parametrize("length", ["9" * 5000, "\xb2", "-1", "1e3", "0x10"])
def test_an_invalid_length_is_ignored(length: str) -> None:
    headers = Message()
    headers["Content-Length"] = length
    answered: Any = SimpleNamespace(status=200, headers=headers)
    assert Response(answered, "http://127.0.0.1/").length is None


def test_requests_to_this_machine_do_not_use_a_proxy(
    server: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get(target) == exit_codes.OK


def test_a_part_completed_by_another_process_is_left_whole(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir()
    remote = RemoteFile(
        NAME, "https://example.invalid/", len(content()), hashlib.sha256(content()).hexdigest()
    )
    part_path = target / f"{NAME}.part"
    final = target / NAME
    part_path.write_bytes(content())
    monkeypatch.setattr(part_file, "_lock", lambda fd, name: part_path.rename(final))
    with pytest.raises(DownloadError, match="has just downloaded it"):
        PartFile(target, remote)
    assert final.read_bytes() == content()

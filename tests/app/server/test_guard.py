"""Tests of the guard: host names, keys, paths, and web pages that the settings allow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.program.settings import ServeSettings, built_in_settings
from app.server.guard import normalize_path
from tests.app.server.serving import Serving, client_of, serving
from tests.app.server.test_hostile_clients import received

NOTES = "https://notes.example"
KEY = "a-key-of-twenty-chars"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-os",
}


@pytest.fixture(scope="module")
def locked() -> Iterator[Serving]:
    """Server with a key that allows two web pages."""
    settings = replace(
        built_in_settings(), serve=ServeSettings(origins=(NOTES, "app://obsidian.md"), pictures="")
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(patch, api_key=KEY, settings=settings) as served,
    ):
        yield served


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("//v1//chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/models", "/v1/models"),
        ("/models/a/b", "/v1/models/a/b"),
        ("/v1/health", "/health"),
        ("/v1", "/v1"),
        ("/v1x/models", "/v1x/models"),
        ("//", "/"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_paths_are_normalized(path: str, meant: str) -> None:
    assert normalize_path(path) == meant


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1:8080/v1/models", "127.0.0.1:8080", b"200"),
        ("HTTP://localhost/v1//models", "localhost", b"200"),
        ("http://localhost", "localhost", b"200"),
        ("http://attacker.example/v1/models", "localhost", b"403"),
        ("http://localhost/v1/models", "attacker.example", b"403"),
        ("http://user@localhost/v1/models", "localhost", b"403"),
        ("ftp://localhost/v1/models", "localhost", b"404"),
        *(
            ("/health", host, b"200")
            for host in (
                "LOCALHOST:1",
                "localhost.:1",
                "127.0.0.1:99",
                "[::1]:8080",
                "[::1]",
                "::1",
            )
        ),
        *(
            ("/health", host, b"403")
            for host in ("attacker.example:80", "", "localhost.attacker.example")
        ),
    ],
)
def test_the_server_answers_only_to_its_names(
    shared: Serving, target: str, host: str, status: bytes
) -> None:
    connection = shared.raw()
    connection.sendall(
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    )
    assert received(connection).split()[1] == status


def test_the_key_opens_all_but_health(locked: Serving) -> None:
    assert locked.get("/health").status_code == 200
    for scheme in ("", "Bearer wrong", KEY, f"Basic {KEY}"):
        headers = {"Authorization": scheme} if scheme else {}
        assert locked.get("/metrics", headers=headers).json()["error"]["code"] == "invalid_api_key"
    stranger = client_of(locked, "wrong")
    with pytest.raises(sys.modules["openai"].AuthenticationError):
        stranger.models.list()
    assert [model.id for model in client_of(locked, KEY).models.list()] == ["m"]


@pytest.mark.parametrize("origin", [NOTES, "app://obsidian.md", NOTES.upper()])
def test_an_allowed_page_may_use_the_server(locked: Serving, origin: str) -> None:
    headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {KEY}"}
    for body in (ASK, {**ASK, "stream": True}, {}):
        answer = locked.post("/v1/chat/completions", body, headers=headers)
        assert answer.status_code == (200 if body else 400)
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin"
    refused = locked.post("/v1/chat/completions", ASK, headers={"Origin": origin})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)


@pytest.mark.parametrize("private", [False, True])
def test_a_preflight_needs_no_key(locked: Serving, private: bool) -> None:
    request_headers = {
        "Origin": NOTES,
        **PREFLIGHT,
        **({"Access-Control-Request-Private-Network": "true"} if private else {}),
    }
    answer = locked.options("/v1/chat/completions", headers=request_headers)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == NOTES
    assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert ("access-control-allow-private-network" in answer.headers) is private


@pytest.mark.parametrize(
    "headers",
    [
        [("Origin", "https://notes.example.attacker.example")],
        [("Origin", "http://notes.example")],
        [("Origin", "http://127.0.0.1")],
        [("Origin", "null")],
        [("Sec-Fetch-Site", "cross-site")],
        [("Origin", NOTES), ("Host", "attacker.example")],
        [("Origin", NOTES), ("Origin", "https://attacker.example")],
    ],
)
def test_other_pages_are_refused(locked: Serving, headers: Any) -> None:
    for answer in (
        locked.get("/health", headers=headers),
        locked.post("/v1/completions", {}, headers=headers),
        locked.options("/v1/models", headers=[*headers, *PREFLIGHT.items()]),
    ):
        assert answer.status_code == 403
        assert answer.headers.get("access-control-allow-origin") in (None, NOTES)
    assert locked.get("/health").status_code == 200


def test_ignored_fields_are_logged_once(
    server: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    for fields in ({"colour": 1}, {"colour": 2, "top_a": 3}, {"colour": 4}):
        server.chat(**fields)
    lines = [line for line in capsys.readouterr().err.splitlines() if "ignored" in line]
    assert [line.rpartition(": ")[2] for line in lines] == ["colour", "top_a"]

"""Downloads over TLS: trusted certificates, and errors reported in one line."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from app.models.downloads import hub
from app.program import exit_codes
from app.program import web_refusals as refusals
from app.program.web_refusals import ConnectionCut
from tests.app.models.downloads.certificates import Authority
from tests.app.models.downloads.local_hub import LocalHub, cut, redirect
from tests.app.models.downloads.local_proxy import LocalProxy
from tests.app.models.downloads.pulling import (
    NAME,
    REPOSITORY,
    client,
    content,
    get,
    refusal,
    remaining_files,
)

TOKEN = "hf_secret"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def trusted(
    clean_network: None, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Make an authority the only trusted one, and set a token for requests to the hub."""
    path = authority.write(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return path


@pytest.fixture
def tls_hub(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Serve a hub and its content server, both over trusted TLS."""
    with tls_server(
        authority.server("127.0.0.1"), authority.server("localhost"), monkeypatch
    ) as server:
        yield server


@contextmanager
def tls_server(
    hub_context: ssl.SSLContext,
    content_context: ssl.SSLContext | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalHub]:
    """Serve a hub with these TLS contexts and one model, with its address in the environment."""
    with LocalHub(
        tls={"hub": hub_context, **({"content": content_context} if content_context else {})}
    ) as server:
        server.add(REPOSITORY, NAME, content())
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


Handshake = Callable[[socket.socket], None]


@contextmanager
def raw_server(handshake: Handshake, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Serve a hub that handles every connection with a function.

    Yields a list with one entry for each connection.
    """
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connections.append(1)
                    handshake(connection)

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{port}")
        yield connections
        listening.shutdown(socket.SHUT_RDWR)


# ---- trusted


def test_a_pull_over_tls_sends_the_token_to_the_hub_only(tls_hub: LocalHub, target: Path) -> None:
    assert tls_hub.address.startswith("https://")
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    assert remaining_files(target) == [NAME]
    tokens = {
        server: [request.headers.get("authorization") for request in tls_hub.requests_to(server)]
        for server in tls_hub.tls
    }
    assert tokens == {"hub": [f"Bearer {TOKEN}"] * 2, "content": [None]}


def test_a_connection_that_is_cut_under_tls_is_resumed(tls_hub: LocalHub, target: Path) -> None:
    tls_hub.faults.append(cut(1000))
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    assert tls_hub.requests_to("content")[-1].headers["range"] == "bytes=1000-"


def test_a_redirect_from_https_to_http_is_refused(
    authority: Authority, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_server(authority.server("127.0.0.1"), None, monkeypatch) as server:
        assert server.content_address.startswith("http://")
        assert "redirects to http, which is not followed" in str(refusal(target))
        assert server.requests_to("content") == []
        server.hub_faults.append(redirect(f"http://127.0.0.1/{REPOSITORY}"))
        assert "redirects to http, which is not followed" in str(refusal(target))


def test_a_token_goes_through_a_proxy_unseen(
    authority: Authority, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_server(
        authority.server("hub.example"), authority.server("localhost"), monkeypatch
    ) as server:
        with LocalProxy({"hub.example": urlsplit(server.address).port or 0}) as proxy:
            monkeypatch.setenv("https_proxy", proxy.address)
            monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
            assert get(target) == exit_codes.OK
        assert [host for host, _ in proxy.requests] == [
            "hub.example:443"
        ] * 2  # localhost does not use the proxy
        assert all("authorization" not in headers for _, headers in proxy.requests)
        assert {request.headers.get("authorization") for request in server.requests_to("hub")} == {
            f"Bearer {TOKEN}"
        }
    assert (target / NAME).read_bytes() == content()


def test_a_refusing_proxy_is_reported_in_one_line(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalProxy({}, status=407) as proxy:
        monkeypatch.setenv("https_proxy", proxy.address)
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
        assert "hub.example: cannot be reached (Tunnel connection failed: 407" in str(
            refusal(target)
        )


# ---- not trusted: one attempt without a request


def refused_certificate(
    context: ssl.SSLContext, target: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Try a download from a hub with this certificate and return the error, without its host."""
    with tls_server(context, None, monkeypatch) as server:
        pauses: list[float] = []
        error = refusal(target, web=client(pauses))
        host = urlsplit(server.address).netloc
    assert server.requests == []
    assert pauses == []
    assert error.exit_code == exit_codes.IO_ERROR
    line = str(error)
    assert line.startswith(f"{host}: ")
    assert line.endswith("; nothing was sent")
    return line


REFUSED: dict[str, tuple[Callable[[Authority, Path], ssl.SSLContext], str]] = {
    "only itself signed it": (
        lambda authority, folder: Authority().self_signed(folder),
        ("is self-signed (a login page or a filter in between?): if you trust it, name its file"),
    ),
    "no known authority": (
        lambda authority, folder: Authority().server("127.0.0.1"),
        "is from an authority unknown to this system: update its ca-certificates",
    ),
    "a clock set back": (
        lambda authority, folder: authority.not_yet_valid("127.0.0.1"),
        "is not valid yet by this computer's clock (2014-01-03): set the clock",
    ),
    "expired": (
        lambda authority, folder: authority.expired("127.0.0.1"),
        ("has expired by this computer's clock (2014-01-03): correct the clock, or update this"),
    ),
    "another host": (
        lambda authority, folder: authority.server("hub.example"),
        "is for another host: check the address",
    ),
    "another address": (
        lambda authority, folder: authority.server("127.0.0.2"),
        "is for another host: check the address",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_untrusted_certificate_is_reported_in_one_line(
    case: str, authority: Authority, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "time", SimpleNamespace(strftime=lambda form: "2014-01-03"))
    make_context, words = REFUSED[case]
    assert f": its certificate {words}" in refused_certificate(
        make_context(authority, tmp_path), target, monkeypatch
    )


def test_an_untrusted_content_server_is_named(
    authority: Authority, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_server(
        authority.server("127.0.0.1"), authority.expired("localhost"), monkeypatch
    ) as server:
        assert str(refusal(target)).startswith(
            f"{urlsplit(server.content_address).netloc}: its certificate has expired"
        )
        assert server.requests_to("content") == []


@pytest.mark.parametrize("file", ["", "not-there.pem", "empty.pem"])
def test_a_system_without_certificates_is_reported(
    file: str, authority: Authority, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.pem").write_text("\n")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / file) if file else "")
    line = refused_certificate(authority.server("127.0.0.1"), target, monkeypatch)
    if file:
        assert "SSL_CERT_FILE names " in line
        assert f"{file}, which has no certificates" in line
    else:
        assert "no certificates: install the package ca-certificates" in line


def test_certificates_in_a_directory_are_used(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "not-there.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert not refusals._knows_authorities()
    authority.write(tmp_path / "0a1b2c3d.0")
    assert refusals._knows_authorities()


# ---- no TLS at all


def reply_with(reply: bytes) -> Handshake:
    """Return a handler that reads the client's data and sends a reply."""

    def handshake(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(reply)

    return handshake


ANOTHER_ALERT = b"\x15\x03\x03\x00\x02\x02\x50"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "does not speak TLS although the address begins with https: check it",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", "no TLS version in common with this system (OpenSSL"),
        (ANOTHER_ALERT, "no secure connection is possible (TLSV1_ALERT_INTERNAL_ERROR"),
    ],
)
def test_a_server_without_usable_tls_gets_one_request(
    reply: bytes, words: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_server(reply_with(reply), monkeypatch) as connections:
        error = refusal(target)
    assert words in str(error)
    assert str(error).startswith("127.0.0.1:")
    assert len(connections) == 1


@pytest.mark.parametrize(
    "handshake", [lambda connection: None, reply_with(b"\x16\x03\x03\x00\x7a\x02\x00")]
)
def test_a_cut_handshake_is_retried_a_limited_number_of_times(
    handshake: Handshake, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    with raw_server(handshake, monkeypatch) as connections:
        error = refusal(target, web=client(pauses))
    assert isinstance(error, ConnectionCut)
    assert "127.0.0.1:" in str(error)
    assert "while it was being secured" in str(error) or "cannot be reached" in str(error)
    assert len(connections) == 5
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_a_handshake_that_never_ends_is_given_up(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_met = threading.Event()

    def send_nothing(connection: socket.socket) -> None:
        was_met.wait(300)

    with raw_server(send_nothing, monkeypatch):
        error = refusal(target, web=client(timeout_s=0.1))
        was_met.set()
    assert "cannot be reached (timed out)" in str(error)


def test_http_to_a_tls_server_is_reported_in_one_line(
    tls_hub: LocalHub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", tls_hub.address.replace("https:", "http:"))
    assert "cannot be reached" in str(refusal(target))
    assert tls_hub.requests == []


def test_a_server_without_http_is_reported_in_one_line(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_server(reply_with(ANOTHER_ALERT), monkeypatch) as connections:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint().replace("https:", "http:"))
        assert "does not speak HTTP (should the address begin with https?)" in str(refusal(target))
    assert len(connections) == 1

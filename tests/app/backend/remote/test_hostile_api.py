"""Tests of hostile servers and of the API key: each error is one clean line, within limits of time
and memory."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend.engine_link import EngineLink
from app.backend.options import ChatOptions
from app.backend.protocol import Opening
from app.backend.remote import exchange
from app.backend.remote.backend import RemoteBackend
from app.backend.remote.event_stream import events
from app.backend.remote.exchange import Exchange
from app.backend.remote.keys import VARIABLE, find_key
from app.backend.remote.reply_chunks import ReplyChunk, parse_chunk
from app.program.refusals import Refusal
from app.program.remote_model import RemoteModel, server_address
from app.program.web_refusals import DownloadError
from app.session.events import GenerationFailed, ModelLoaded
from app.session.request import Request
from tests.app.backend.remote.conftest import Ask
from tests.app.backend.remote.raw_api import HANG, answering, event, http, stream
from tests.app.backend.remote.talking import talking, text_of
from tests.app.fake_engine import Script

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "delta",
                    "message",
                    "content",
                    "text",
                    "reasoning",
                    "finish_reason",
                    "prompt_tokens",
                )
            ),
            inner,
        )
    ),
    max_leaves=8,
)
KEY = "sk-very-secret-0123456789"


def test_text_is_cleaned(ask: Ask) -> None:
    words = b'data: {"choices": [{"delta": {"content": "a\\u001b[31mb\\ud800\\u0007 \xff c"}}]}\n\n'
    _, reply = ask(http(words + event(finish="stop")))
    assert not any(char in reply.text for char in "\x1b\x07\ud800")
    assert reply.text.endswith("c")


def test_a_reply_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_MAX_TEXT_CHARS", 10_000)
    monkeypatch.setattr(exchange, "_MAX_STREAM_BYTES", 1 << 20)
    loud = stream("x" * 9000, "y" * 9000, end=HANG)
    silent = http(b": ping\n" * 300_000 + HANG)
    with answering(loud, silent) as api, talking(api.url) as talk:
        for _ in range(2):
            *_, failed = talk.ask("hi")
            assert isinstance(failed, GenerationFailed)
            assert failed.reason.endswith("the answer does not end")


def test_pings_do_not_count_as_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    class SlowExchange(Exchange):
        def _body(self, *arguments: Any) -> Any:
            for piece in super()._body(*arguments):
                now_s[0] += 700.0
                yield piece

    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pings = http(b": ping\n\n" * 20_000 + HANG)
    words = "no text came for 10 min"
    with answering(pings) as api, pytest.raises(DownloadError, match=words):
        list(SlowExchange(RemoteModel(api.url)).reply_chunks("/chat/completions", {}))


@settings(max_examples=25)
@given(st.lists(JSON | st.binary(max_size=60), max_size=6), st.integers(1, 40))
def test_any_stream_gives_chunks_or_one_error(values: list[Any], size: int) -> None:
    def line(value: Any) -> bytes:
        return (
            value
            if isinstance(value, bytes)
            else b"data: " + json.dumps({"choices": [value], "usage": value}).encode()
        )

    raw = b"\n".join(map(line, values))
    split = [raw[start : start + size] for start in range(0, len(raw), size)]
    outcomes: list[list[ReplyChunk]] = [[], []]
    for chunks, pieces in zip(([raw], split), outcomes, strict=True):
        with suppress(DownloadError):  # any other exception would be a fault
            pieces.extend(parse_chunk(event) for event in events(chunks, "host"))
    assert outcomes[0] == outcomes[1]
    assert all(type(piece.answer) is str and type(piece.finish) is str for piece in outcomes[0])


def test_the_key_is_sent_to_its_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    wrong = http(b'{"error": {"message": "bad key: %s"}}' % KEY.encode(), status="401 No")
    with answering(wrong) as api, talking(api.url) as talk:
        (failed,) = list(talk.ask("hi"))
        assert isinstance(failed, GenerationFailed)
        assert failed.reason.endswith("does not accept the key: bad key: [the key]")
        assert all(f"Authorization: Bearer {KEY}" in head for head in api.heads)
    assert KEY not in repr(RemoteModel(api.url))


def test_the_keyring_is_used_without_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[str, str]] = []

    def password(service: str, host: str) -> str:
        requests.append((service, host))
        if host == "locked":
            raise RuntimeError(KEY)
        return KEY

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "keyring", SimpleNamespace(get_password=password))
    assert (find_key("host:1"), find_key("locked")) == (KEY, "")
    monkeypatch.setenv(VARIABLE, "other")
    assert find_key("host:1") == "other"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert find_key("host:1") == ""
    assert requests == [("jalopy", "host:1"), ("jalopy", "locked")]


def test_an_invalid_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{KEY}\r\nX: y")
    with pytest.raises(Refusal) as refused:
        find_key("host")
    assert KEY not in str(refused.value)


class RemoteExchange(Exchange):
    """Server on another machine that does not exist."""

    def fetch(self, path: str) -> Any:
        """Return a list with one model."""
        return {"data": [{"id": "big"}]}


def test_plain_http_warns_and_sends_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []

    def record(self: Any, request: Any, **_: Any) -> Any:
        sent.append(dict(request.header_items()))
        raise OSError("not sent")

    monkeypatch.setenv(VARIABLE, KEY)
    far = RemoteModel("http://192.0.2.7:8000/v1")
    options = ChatOptions(open_model=Script().open_model, sampling=lambda chosen, model, mode: None)
    link = EngineLink(time.monotonic)
    worker = RemoteBackend(link, options, RemoteExchange)
    worker.open(Opening(far, Request()))
    (loaded,) = link.outbox.drain()
    assert isinstance(loaded, ModelLoaded)
    assert "your messages are sent unencrypted; the key is not sent" in loaded.notices[0]
    monkeypatch.setattr("urllib.request.OpenerDirector.open", record)
    for model, has_key in ((far, False), (RemoteModel("https://192.0.2.7/v1"), True)):
        with pytest.raises(DownloadError, match="cannot be reached"):
            Exchange(model, KEY).fetch("/models")
        assert (f"Bearer {KEY}" in sent.pop().values()) is has_key


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:1", "http://host:1/v1"),
        ("https://host/api/v3/", "https://host/api/v3"),
        ("http://[::1]:80/", "http://[::1]:80/v1"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("http://host:1/models/", "http://host:1/v1"),
    ],
)
def test_valid_addresses_are_parsed(text: str, address: str) -> None:
    assert server_address(text) == address


NO_ADDRESSES = (
    "host:1", "ftp://host", "http://", "http://a:b@host", "http://h/?k=1", "http://h/#x",
    "http://h:x", "http://ho st",
    "http://[::1",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        server_address(text)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_on_the_same_host_is_followed_with_the_key(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    moved = http(b"", status=f"{status} Moved", headers="Location: /v1/chat/completions/\r\n")
    with answering(moved, stream("Because.")) as api, talking(api.url) as talk:
        assert text_of(list(talk.ask("why?"))) == "Because."
    assert api.heads[-1].startswith("POST /v1/chat/completions/ ")
    assert f"Bearer {KEY}" in api.heads[-1]
    assert api.bodies[0] == api.bodies[1]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/v1/chat/completions", "redirects to 127.0.0.1"),
        ("http://evil.example/v1", "redirects to evil.example, which is not followed"),
        ("//evil.example/v1", "redirects to evil.example, which is not followed"),
        ("http://127.0.0.1:9/v1", "redirects to 127.0.0.1:9, which is not followed"),
    ],
)
def test_other_redirects_are_reported(location: str, words: str) -> None:
    moved = http(b"", status="307 Moved", headers=f"Location: {location}\r\n")
    with answering(*[moved] * 9) as api, talking(api.url) as talk:
        (failed,) = list(talk.ask("why?"))
    assert isinstance(failed, GenerationFailed)
    assert words in failed.reason


def test_returned_fields_are_limited() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    floods = [event(reasoning_details=[{"data": "y" * 100_000}]) for _ in range(20)]
    odd = event(thought_signature={"a": deep}) + event(
        reasoning_opaque=5, thinking_blocks=[None, 5, "x"]
    )
    flooding = http(
        b"".join(floods) + odd + event(content="Blue.", finish="stop") + b"data: [DONE]\n\n"
    )
    with answering(flooding, stream("Yes.")) as api, talking(api.url) as talk:
        assert text_of(list(talk.ask("why?"))) == "Blue."
        assert text_of(list(talk.ask("sure?"))) == "Yes."
    assert api.bodies[1]["messages"][1] == {"role": "assistant", "content": "Blue."}

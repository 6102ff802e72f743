"""Servers that lie, stall or never end: one clean line each, in bounded time and memory, and what came is kept."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.backend import Opening
from app.chat.events import GenerationFailed, GenerationFinished, ModelLoaded
from app.chat.options import ChatOptions
from app.chat.request import Request
from app.chat.wire import Wire
from app.downloads.refusal import DownloadError
from app.program.refusals import Refusal
from app.program.remote_model import RemoteModel, server_address
from app.remote import exchange as exchanges
from app.remote.backend import RemoteBackend
from app.remote.exchange import Exchange
from app.remote.keys import VARIABLE, find_key
from app.remote.pieces import Delta, piece_of
from app.remote.stream import events
from app.text.clean_text import clean_line
from tests.app.fake_engine import Script
from tests.app.remote.raw_api import HANG, answering, event, http, stream
from tests.app.remote.talking import IMPATIENT, talking, text_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("delta", "message", "content", "text", "reasoning", "finish_reason", "prompt_tokens")),
            inner,
        )
    ),
    max_leaves=8,
)
KEY = "sk-very-secret-0123456789"
ERROR = b'{"error": {"message": "context of 4096 exceeded\\u001b[31m\\u202e"}}'
WORD = event(content="word")

REFUSED = {
    "no key": (http(b"", status="401 No"), f"asks for a key: set {VARIABLE}"),
    "no model": (http(b'{"error": {"message": "no such model"}}', status="404 No"), "not found: no such model"),
    "no page": (http(b"<html>", "text/html", "404 No"), "is the address right? It usually ends in /v1"),
    "too many": (http(b"", status="429 No", more="Retry-After: 90\r\n"), "too many requests (try again in 1 min 30 s)"),
    "busy": (http(b'{"detail": "loading"}', status="503 No"), "answers with status 503: loading"),
    "too long": (http(ERROR, status="400 Bad"), "answers with status 400: context of 4096 exceeded"),
    "endless refusal": (http(b"x" * 9_000_000, status="500 No"), "answers with status 500"),
    "hanging refusal": (http(b"{" + HANG, status="500 No"), "answers with status 500"),
    "elsewhere": (http(b"", status="307 Go", more="Location: http://evil.example/v1\r\n"), "redirects to evil.example"),
    "a page": (http(b"<!doctype html><html>", "text/html"), "sends a web page where the API's JSON is expected"),
    "an error for a stream": (http(ERROR, "application/json"), "context of 4096 exceeded"),
    "no JSON": (http(b"data: {nonsense\n\n"), "sends something else where the API's JSON is expected"),
    "deep": (http(b"data: " + b"[" * 200_000 + b"\n\n"), "sends something else"),
    "one endless line": (http(b"data: " + b"x" * 3_000_000), "sends a line that does not end"),
    "endless head": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200_000, "cannot be reached"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
    "nothing": (HANG, "cannot be reached (nothing came for too long)"),
    "compressed": (http(b"\x1f\x8b\x08\x00" * 50), "the connection ended before the answer did"),
    "silent stream": (http(b": ping\n\n" + HANG), "the connection broke off (nothing came for too long)"),
}
BROKEN = {
    "ends": (stream("word", end=b""), "the connection ended before the answer did"),
    "hangs": (stream("word", end=HANG), "the connection broke off (nothing came for too long)"),
    "an error": (stream("word", end=b"data: " + ERROR + b"\n\n"), "context of 4096 exceeded"),
    "junk": (stream("word", end=b"data: }\n\n"), "sends something else"),
    "cut chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n99\r\nab" % (len(WORD), WORD),
        "the connection broke off",
    ),
    "no chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\nxyz\r\n" % (len(WORD), WORD),
        "the connection broke off",
    ),
}


def require_line(line: str, url: str, words: str) -> None:
    assert words in line
    assert clean_line(line, 300) == line
    assert line.startswith(RemoteModel(url).host)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_reply_is_a_line(name: str) -> None:
    answer, words = REFUSED[name]
    with answering(answer, stream("fine")) as api, talking(api.url, limits=IMPATIENT) as talk:
        (failed,) = list(talk.ask("hi"))
        assert isinstance(failed, GenerationFailed)
        require_line(failed.reason, api.url, words)
        assert text_of(list(talk.regenerate())) == "fine"


@pytest.mark.parametrize("name", BROKEN)
def test_what_came_of_a_broken_reply_is_kept(name: str) -> None:
    answer, words = BROKEN[name]
    with answering(answer) as api, talking(api.url, limits=IMPATIENT) as talk:
        failed = list(talk.ask("hi"))[-1]
        assert isinstance(failed, GenerationFailed)
        require_line(failed.reason, api.url, words)
        assert talk.turns.conversation.messages[-1].text == "word"
        assert talk.turns.can_continue


SOUND = {
    "not streamed": (
        http(b'{"choices": [{"message": {"content": "word"}, "finish_reason": "stop"}]}', "application/json")
    ),
    "no reason": stream("word", end=b"data: [DONE]\n\n"),
    "nothing after the reason": stream("word", end=event(finish="stop")),
    "hangs after the reason": stream("word", end=event(finish="stop") + HANG),
    "junk after the reason": stream("word", end=event(finish="stop") + b"data: {\n\n"),
    "other kinds": http(
        b'\xef\xbb\xbf: hi\r\nid: 5\r\nevent: x\r\ndata:null\r\n\r\ndata: [1]\r\ndata: {"choices": 7}\r\n\r\n'
        b'data:{"choices":[{"delta":{"content":["x"],"tool_calls":5}}], "usage": [], "timings": 3}\r\n\r\n'
        + WORD
        + b"data:[DONE]\r\n\r\n"
    ),
    "mad figures": stream(
        "word",
        end=b'data: {"choices": [{"finish_reason": 5}], "usage": {"prompt_tokens": -1, "completion_tokens": 1e99, '
        b'"prompt_tokens_details": {"cached_tokens": true}}, "timings": {"prompt_ms": "x", "cache_n": null}}\n\n'
        b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 999999999999999999}}\n\n'
        b'data: {"timings": {"prompt_ms": NaN}}\n\n'
        b"data: [DONE]\n\n",
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_replies_of_all_kinds_are_read(name: str) -> None:
    with answering(SOUND[name]) as api, talking(api.url, limits=IMPATIENT) as talk:
        ended = list(talk.ask("hi"))[-1]
        assert isinstance(ended, GenerationFinished)
        assert (ended.raw, talk.turns.conversation.messages[-1].text) == ("word", "word")
        assert 0 < ended.figures.tokens <= 1 << 20


def test_text_is_cleaned() -> None:
    words = b'data: {"choices": [{"delta": {"content": "a\\u001b[31mb\\ud800\\u0007 \xff c"}}]}\n\n'
    with answering(http(words + event(finish="stop"))) as api, talking(api.url, limits=IMPATIENT) as talk:
        list(talk.ask("hi"))
        text = talk.turns.conversation.messages[-1].text
        assert not any(char in text for char in "\x1b\x07\ud800")
        assert text.endswith("c")


def test_a_reply_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "_MOST_TEXT_CHARS", 10_000)
    monkeypatch.setattr(exchanges, "_MOST_STREAM_BYTES", 1 << 20)
    loud, silent = stream("x" * 9000, "y" * 9000, end=HANG), http(b": ping\n" * 300_000 + HANG)
    with answering(loud, silent) as api, talking(api.url) as talk:
        for _ in range(2):
            failed = list(talk.ask("hi"))[-1]
            assert isinstance(failed, GenerationFailed)
            require_line(failed.reason, api.url, "the answer does not end")


def test_pings_are_no_reply() -> None:
    now_s = [0.0]

    class Later(Exchange):
        def _body(self, *arguments: Any) -> Any:
            for piece in super()._body(*arguments):
                now_s[0] += 700.0
                yield piece

    with answering(http(b": ping\n\n" * 20_000 + HANG)) as api:
        pieces = Later(RemoteModel(api.url), clock=lambda: now_s[0]).pieces("/chat/completions", {})
        with pytest.raises(DownloadError, match="no word came for 10 min"):
            list(pieces)


@given(st.lists(JSON | st.binary(max_size=60), max_size=6), st.integers(1, 40))
def test_streams_of_anything_are_pieces_or_a_line(said: list[Any], size: int) -> None:
    def line(one: Any) -> bytes:
        return one if isinstance(one, bytes) else b"data: " + json.dumps({"choices": [one], "usage": one}).encode()

    raw = b"\n".join(map(line, said))
    split = [raw[at : at + size] for at in range(0, len(raw), size)]
    told: list[list[Delta]] = [[], []]
    for whole, pieces in zip(([raw], split), told, strict=True):
        with suppress(DownloadError):  # any other exception would be a fault
            pieces.extend(piece_of(event) for event in events(whole, "host"))
    assert told[0] == told[1]
    assert all(type(piece.answer) is str and type(piece.finish) is str for piece in told[0])


LISTS = {
    "none": (b'{"data": []}', "has no model"),
    "no list": (b'{"models": "x"}', "does not list models"),
    "unsound": (b'{"data": [5, {"id": 7}, {"id": ""}, {"id": "a\\nb"}, {}]}', "has no model"),
    "a page": (b"<html>", "sends a web page"),
    "huge": (b'{"data": [' + b" " * 5_000_000 + b"]}", "the answer does not end"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_models_that_is_none(name: str) -> None:
    models, words = LISTS[name]
    with answering(models=models) as api, pytest.raises(AssertionError, match=words), talking(api.url):
        pass


def test_the_key_goes_to_this_machine_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    wrong = http(b'{"error": {"message": "bad key: %s"}}' % KEY.encode(), status="401 No")
    with answering(wrong) as api, talking(api.url) as talk:
        (failed,) = list(talk.ask("hi"))
        assert isinstance(failed, GenerationFailed)
        assert failed.reason.endswith("does not accept the key: bad key: [the key]")
        assert all(f"Authorization: Bearer {KEY}" in head for head in api.heads)
    assert KEY not in repr(RemoteModel(api.url))


def test_the_keyring_is_asked_where_the_environment_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def password(service: str, host: str) -> str:
        asked.append((service, host))
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
    assert asked == [("jalopy", "host:1"), ("jalopy", "locked")]


def test_a_key_with_a_line_break_is_refused_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{KEY}\r\nX: y")
    with pytest.raises(Refusal) as refused:
        find_key("host")
    assert KEY not in str(refused.value)


class Far(Exchange):
    """A server on another machine, which is not there."""

    def answer(self, path: str) -> Any:
        """List one."""
        return {"data": [{"id": "big"}]}


def test_plain_http_to_another_machine_is_said_and_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def note(self: Any, request: Any, **_: Any) -> Any:
        sent.append(dict(request.header_items()))
        raise OSError("not sent")

    monkeypatch.setenv(VARIABLE, KEY)
    far = RemoteModel("http://192.0.2.7:8000/v1")
    options = ChatOptions(open_model=Script().open_model, sampling=lambda model, mode: None)
    wire = Wire(time.monotonic)
    worker = RemoteBackend(wire, options, dict, Far)
    worker.open(Opening(far, Request()))
    (loaded,) = wire.drain()
    assert isinstance(loaded, ModelLoaded)
    assert "what is written goes there unencrypted; the key is not sent" in loaded.notices[0]
    monkeypatch.setattr("urllib.request.OpenerDirector.open", note)
    for model, has_key in ((far, False), (RemoteModel("https://192.0.2.7/v1"), True)):
        with pytest.raises(DownloadError, match="cannot be reached"):
            Exchange(model, KEY).answer("/models")
        assert (f"Bearer {KEY}" in sent.pop().values()) is has_key


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://host:1", "http://host:1/v1"),
        ("https://host/api/v3/", "https://host/api/v3"),
        ("http://[::1]:80/", "http://[::1]:80/v1"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("http://host:1/models/", "http://host:1/v1"),
    ],
)
def test_addresses(given: str, address: str) -> None:
    assert server_address(given) == address


@pytest.mark.parametrize(
    "given",
    [
        "host:1",
        "ftp://host",
        "http://",
        "http://a:b@host",
        "http://h/?k=1",
        "http://h/#x",
        "http://h:x",
        "http://ho st",
        "http://[::1",
    ],
)
def test_no_addresses(given: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        server_address(given)

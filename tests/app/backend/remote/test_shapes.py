"""Tests of the formats of replies of servers: each gives an answer with thinking, or one line."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from app.backend.remote import event_stream
from app.backend.remote.keys import VARIABLE
from app.conversations.conversation import Ending
from app.session.events import GenerationFailed, GenerationFinished
from app.text.clean_text import clean_line
from tests.app.backend.remote.conftest import Ask
from tests.app.backend.remote.raw_api import HANG, answering, event, http, stream
from tests.app.backend.remote.talking import talking

DONE = b"data: [DONE]\n\n"
END = event(finish="stop") + DONE


def chunk(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(**fields: Any) -> bytes:
    return chunk({"choices": [{"index": 0, **fields}]})


def lines(value: Any, ends: bytes) -> bytes:
    """Return an object that is spread over several lines of data."""
    return (
        b"".join(
            b"data: " + line + ends for line in json.dumps(value, indent=1).encode().split(b"\n")
        )
        + ends
    )


SKY = {"choices": [{"index": 0, "delta": {"content": "Blue sky"}}]}
WHOLE = {
    "choices": [{"message": {"role": "assistant", "content": "Blue sky"}, "finish_reason": "stop"}]
}
PLAIN = b"".join(event(content=word) for word in ("Blue ", "sky")) + END
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


def packed(body: bytes, encoding: str) -> bytes:
    return http(body, headers=f"Content-Encoding: {encoding}\r\n")


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


ANSWERS = {
    "parts": http(
        event(content=[{"type": "text", "text": "Blue "}, {"type": "text", "text": "sky"}]) + END
    ),
    "a part": http(event(content={"type": "output_text", "text": "Blue sky"}) + END),
    "whole message of parts": http(
        json.dumps(
            {"choices": [{"message": {"content": [THOUGHT, {"type": "text", "text": "Blue sky"}]}}]}
        ).encode()
    ),
    "refusal": http(event(refusal="Blue sky") + END),
    "CR": http(PLAIN.replace(b"\n", b"\r")),
    "CRLF": http(PLAIN.replace(b"\n", b"\r\n")),
    "no empty lines": http(PLAIN.replace(b"\n\n", b"\n")),
    "many lines": http(lines(SKY, b"\n") + END),
    "many lines in CR": http(lines(SKY, b"\r") + END),
    "cut within a text": http(chunk(SKY).replace(b"Blue", b"Bl\ndata: ue") + END),
    "twice wrapped": http(PLAIN.replace(b"data: ", b"data: data: ")),
    "indented": http(PLAIN.replace(b"data: ", b"  data:")),
    "comments and names": http(
        b": hi\n\nevent: message\nid: 7\nretry: 10\n" + PLAIN.replace(b"\n\n", b"\n\n: x\n\n")
    ),
    "BOM": http(b"\xef\xbb\xbf" + PLAIN),
    "blanks": http(b"\n\ndata:\n\ndata: {}\n\ndata: null\n\n" + PLAIN),
    "done in quotes": http(event(content="Blue sky") + b'data: "[done]"\n\n'),
    "other kinds": http(
        b'event: x\r\ndata:null\r\n\r\ndata: [1]\r\ndata: {"choices": 7}\r\n\r\n'
        b'data:{"choices":[{"delta":{"content":'
        b'["x"],"tool_calls":5}}], "usage": [], "timings": 3}\r\n\r\n' + PLAIN
    ),
    "mad figures": stream(
        "Blue sky",
        end=b'data: {"choices": [{"finish_reason": 5}], '
        b'"usage": {"prompt_tokens": -1, "completion_tokens": 1e99, '
        b'"prompt_tokens_details": {"cached_tokens": true}}, '
        b'"timings": {"prompt_ms": "x", "cache_n": null}}\n\n'
        b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 999999999999999999}}\n\n'
        b'data: {"timings": {"prompt_ms": NaN}}\n\n' + DONE,
    ),
    "whole as a stream": http(json.dumps(WHOLE).encode()),
    "whole and indented": http(json.dumps(WHOLE, indent=2).encode(), "application/json"),
    "whole with BOM": http(b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), "text/plain"),
    "stream as JSON": http(PLAIN, "application/json"),
    "created": http(json.dumps(WHOLE).encode(), "application/json", "201 Created"),
    "array of pieces": http(b"[" + json.dumps(SKY).encode() + b"]", "application/json"),
    "lines of JSON": http(
        b'{"message": {"content": "Blue "}}\n{"message": {"content": "sky"}, "done": true}\n'
    ),
    "said again at the end": http(event(content="Blue sky") + chunk(WHOLE) + DONE),
    "message in pieces": http(
        choice(message={"content": "Blue "}) + choice(message={"content": "sky"}) + END
    ),
    "gzip": packed(gzip.compress(PLAIN), "gzip"),
    "gzip in two parts": packed(gzip.compress(PLAIN[:30]) + gzip.compress(PLAIN[30:]), "x-gzip"),
    "deflate": packed(zlib.compress(PLAIN), "deflate"),
    "raw deflate": packed(raw_deflate(PLAIN), "deflate"),
    "old HTTP": b"HTTP/1.0 200 OK\r\n\r\n" + PLAIN,
    "finish in the delta": http(event(content="Blue sky", finish_reason="stop")),
    "finish at the top": http(
        event(content="Blue sky") + chunk({"choices": [], "finish_reason": "stop"})
    ),
    "null as a word": http(
        b"".join(choice(delta={"content": word}, finish_reason="null") for word in ("Blue ", "sky"))
        + DONE
    ),
    "finish in every piece": http(
        event(content="Blue ", finish="stop") + event(content="sky", finish="stop") + DONE
    ),
    "text after the end": http(event(content="Blue ", finish="stop") + event(content="sky") + DONE),
    "silence after the end": http(
        event(content="Blue ", finish="stop") + event(content="sky", finish="stop") + HANG
    ),
    "nothing after the end": stream("Blue sky", end=event(finish="stop")),
    "junk after the end": stream("Blue sky", end=event(finish="stop") + b"data: {\n\n"),
    "no reason": http(event(content="Blue sky") + DONE),
    "usage alone": http(chunk({"choices": [], "usage": {"prompt_tokens": 3.0}}) + PLAIN),
    "usage in the choice": http(
        event(content="Blue sky") + choice(finish_reason="stop", usage={"prompt_tokens": 3})
    ),
    "no error": http(PLAIN.replace(b'{"choices"', b'{"error": null, "choices"')),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_in_every_shape(ask: Ask, name: str) -> None:
    ended, reply = ask(ANSWERS[name])
    assert isinstance(ended, GenerationFinished), ended
    assert (ended.ending, reply.text) == (Ending.COMPLETE, "Blue sky")
    assert 0 < ended.figures.tokens <= 1 << 20


THOUGHTS = {
    "a part": event(content=[THOUGHT]),
    "a text in a part": event(content=[{"type": "thinking", "thinking": "hm"}]),
    "reasoning_content": event(reasoning_content="hm"),
    "reasoning": event(reasoning="hm", content=""),
    "both": event(reasoning="hm", reasoning_content="hm"),
    "thinking": event(thinking="hm"),
    "details": event(reasoning_details=[{"type": "reasoning.text", "text": "hm"}]),
    "after a blank": event(content="\n") + event(reasoning="hm"),
    "tags": event(content="<thi") + event(content="nk>hm</th") + event(content="ink>\n\n"),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_is_separated_in_every_shape(ask: Ask, name: str) -> None:
    _, reply = ask(http(THOUGHTS[name] + PLAIN))
    assert reply.thinking is not None
    assert (reply.text.strip(), reply.thinking.text.strip()) == ("Blue sky", "hm")


ENDLESS_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n"
BLUE = event(content="Blue")
ERRORS = {
    "event": (
        stream("Blue", end=b'event: error\ndata: {"message": "slot failed"}\n\n'),
        "slot failed",
    ),
    "event in words": (stream("Blue", end=b"event: error\ndata: slot failed\n\n"), "slot failed"),
    "field": (
        stream("Blue", end=b'error: {"code": 500, "message": "slot failed"}\n\n'),
        "slot failed",
    ),
    "object": (
        stream("Blue", end=chunk({"object": "error", "message": "slot failed", "code": 500})),
        "slot failed",
    ),
    "plain": (stream("Blue", end=b'{"error": {"message": "slot failed"}}\n'), "slot failed"),
    "words": (stream("Blue", end=chunk({"error": "slot failed"})), "slot failed"),
    "choice": (
        stream("Blue", end=choice(delta={}, error={"message": "slot failed"})),
        "slot failed",
    ),
    "finish": (stream("Blue", end=choice(delta={}, finish_reason="error")), "the server broke off"),
    "code": (
        stream("Blue", end=chunk({"text": "slot failed", "error_code": 50001})),
        "slot failed",
    ),
    "gateway": (
        stream(
            "Blue",
            end=chunk({"error": {"message": "provider", "metadata": {"raw": "slot failed"}}}),
        ),
        "provider: slot failed",
    ),
    "withheld": (
        stream("Blue", end=event(finish="content_filter")),
        "withheld the rest of the answer (content",
    ),
    "ends": (stream("Blue", end=b""), "the connection ended before the answer did"),
    "hangs": (stream("Blue", end=HANG), "the connection broke off (timed out)"),
    "junk": (stream("Blue", end=b"data: }\n\n"), "usually ends in /v1"),
    "cut chunk": (ENDLESS_CHUNK % (len(BLUE), BLUE) + b"99\r\nab", "the connection broke off"),
    "no chunk": (ENDLESS_CHUNK % (len(BLUE), BLUE) + b"xyz\r\n", "the connection broke off"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_broken_reply_stays_and_gives_one_line(ask: Ask, name: str) -> None:
    answer, words = ERRORS[name]
    failed, reply = ask(answer)
    assert isinstance(failed, GenerationFailed)
    assert words in failed.reason
    assert reply.text == "Blue"


ERROR = b'{"error": {"message": "context of 4096 exceeded\\u001b[31m\\u202e"}}'
REFUSALS = {
    "no key": (http(b"", status="401 No"), f"asks for a key: set {VARIABLE}"),
    "no model": (
        http(b'{"error": {"message": "no such model"}}', status="404 No"),
        "not found: no such model",
    ),
    "no page": (
        http(b"<html>", "text/html", "404 No"),
        "is the address right? It usually ends in /v1",
    ),
    "too many": (
        http(b"", status="429 No", headers="Retry-After: 90\r\n"),
        "too many requests (try again in 1 min 30 s)",
    ),
    "busy": (http(b'{"detail": "loading"}', status="503 No"), "answers with status 503: loading"),
    "too long": (
        http(ERROR, status="400 Bad"),
        "answers with status 400: context of 4096 exceeded",
    ),
    "endless refusal": (http(b"x" * 9_000_000, status="500 No"), "answers with status 500"),
    "hanging refusal": (http(b"{" + HANG, status="500 No"), "answers with status 500"),
    "elsewhere": (
        http(b"", status="307 Go", headers="Location: http://evil.example/v1\r\n"),
        "redirects to evil.example",
    ),
    "bad redirect": (
        http(b"", status="302 Go", headers="Location: http://[::1\r\n"),
        "redirects to an invalid address",
    ),
    "redirect to nowhere": (http(b"", status="301 Go"), "which is not followed"),
    "no content": (http(b"", status="204 No Content"), "answers with status 204"),
    "a page": (
        http(b"<!doctype html><html>", "text/html"),
        "sends a web page instead of the JSON of the API",
    ),
    "words": (
        http(b"404 page not found\n", "text/plain", "404 No"),
        "not found: 404 page not found",
    ),
    "a list": (
        http(b'[{"error": {"code": 400, "message": "bad field"}}]', status="400 No"),
        "status 400: bad field",
    ),
    "details": (
        http(b'{"detail": [{"type": "x", "msg": "bad field"}]}', status="422 No"),
        "status 422: bad field",
    ),
    "packed": (
        http(
            gzip.compress(b'{"error": "bad field"}'),
            status="400 No",
            headers="Content-Encoding: gzip\r\n",
        ),
        "status 400: bad field",
    ),
    "an error for a stream": (http(ERROR, "application/json"), "context of 4096 exceeded"),
    "no JSON": (
        http(b"data: {nonsense\n\n"),
        "sends something else instead of the JSON of the API",
    ),
    "deep": (http(b"data: " + b"[" * 200_000 + b"\n\n"), "sends something else"),
    "one endless line": (http(b"data: " + b"x" * 3_000_000), "sends a line that does not end"),
    "endless head": (
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200_000,
        "its headers are too long",
    ),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
    "nothing": (HANG, "cannot be reached (timed out)"),
    "compressed": (http(b"\x1f\x8b\x08\x00" * 50), "the connection ended before the answer did"),
    "silent stream": (
        http(b": ping\n\n" + HANG),
        "the connection broke off (timed out)",
    ),
    "brotli": (packed(b"x", "br"), "compresses its answer in an unknown way (br)"),
    "not packed": (
        packed(PLAIN, "gzip"),
        "says that its answer is compressed (gzip), but it is not",
    ),
    "bomb": (packed(gzip.compress(bytes(8 << 20)), "gzip"), "sends a line that does not end"),
    "other JSON": (
        http(b'{"status": "ok"}', "application/json"),
        "sends no answer, or one in an unknown format",
    ),
    "unknown parts": (
        http(event(content=[{"type": "image_url"}]) + END),
        "in an unknown format",
    ),
    "nothing but the end": (http(DONE), "sends no answer"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_missing_answer_gives_one_line_in_every_shape(ask: Ask, name: str) -> None:
    answer, words = REFUSALS[name]
    failed, question = ask(answer)
    assert isinstance(failed, GenerationFailed)
    assert words in failed.reason
    assert (clean_line(failed.reason, 300), question.text) == (failed.reason, "Why?")


def test_lines_without_end_are_cut(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_LINES", 1000)
    # Consecutive empty lines count as one.
    assert list(event_stream.events([b"\n" * 4096, b"\r" * 4096, DONE], "host")) == []
    failed, _ = ask(packed(gzip.compress(b": x\n" * 2000), "gzip"))
    assert isinstance(failed, GenerationFailed)
    assert failed.reason.endswith("the answer does not end")


def test_other_words_for_the_length_limit_are_known(ask: Ask) -> None:
    ended, _ = ask(http(event(content="Blue", finish="MAX_TOKENS") + DONE))
    assert isinstance(ended, GenerationFinished)
    assert ended.ending is Ending.LENGTH


LISTS = {
    "as the API says": (b'{"object": "list", "data": [{"id": "m", "meta": null}]}', ""),
    "Ollama": (b'{"models": [{"name": "m", "model": "m"}]}', ""),
    "null and models": (b'{"data": null, "models": [{"name": "m"}]}', ""),
    "a list": (b'[{"id": "m"}, {"id": "m"}]', ""),
    "names": (b'{"data": ["m"]}', ""),
    "BOM": (b'\xef\xbb\xbf{"data": [{"id": "m"}]}', ""),
    "none": (b'{"data": []}', "has no model"),
    "no list": (b'{"models": "x"}', "does not list models"),
    "unsound": (b'{"data": [5, {"id": 7}, {"id": ""}, {"id": "a\\nb"}, {}]}', "has no model"),
    "a page": (b"<html>", "sends a web page"),
    "huge": (b'{"data": [' + b" " * 5_000_000 + b"]}", "the answer does not end"),
}


@pytest.mark.parametrize("name", LISTS)
def test_models_are_listed_in_every_shape(name: str) -> None:
    models, trouble = LISTS[name]
    with answering(models=models) as api:
        if trouble:
            with pytest.raises(AssertionError, match=trouble), talking(api.url):
                pass
            return
        with talking(api.url) as talk:
            assert talk.chat_session.model is not None
            assert talk.chat_session.model.name == "m"


def test_a_server_without_a_list_uses_the_given_name() -> None:
    with answering(stream("a"), is_listing=False) as api:
        with talking(api.url, "any") as talk:
            list(talk.ask("hi"))
            assert api.bodies[0]["model"] == "any"
        with pytest.raises(AssertionError, match="name one with --model"), talking(api.url):
            pass


def test_an_address_without_v1_is_completed() -> None:
    with answering(stream("a")) as api, talking(api.url.removesuffix("/v1") + "/api") as talk:
        list(talk.ask("hi"))
        assert api.heads[-1].startswith("POST /api/v1/chat/completions")

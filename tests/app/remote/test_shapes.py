"""What servers send in place of what the API says: one answer, told apart from its thought; or one line."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from app.chat.events import GenerationFailed, GenerationFinished
from app.conversations.conversation import Ending
from app.remote import stream as streams
from tests.app.remote.raw_api import HANG, answering, event, http, stream
from tests.app.remote.talking import IMPATIENT, talking

DONE = b"data: [DONE]\n\n"
END = event(finish="stop") + DONE


def chunk(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(**fields: Any) -> bytes:
    return chunk({"choices": [{"index": 0, **fields}]})


def lines(value: Any, ends: bytes) -> bytes:
    """One object over several lines of data."""
    return b"".join(b"data: " + line + ends for line in json.dumps(value, indent=1).encode().split(b"\n")) + ends


SKY = {"choices": [{"index": 0, "delta": {"content": "Blue sky"}}]}
WHOLE = {"choices": [{"message": {"role": "assistant", "content": "Blue sky"}, "finish_reason": "stop"}]}
PLAIN = b"".join(event(content=one) for one in ("Blue ", "sky")) + END
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


def packed(body: bytes, encoding: str) -> bytes:
    return http(body, more=f"Content-Encoding: {encoding}\r\n")


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


ANSWERS = {
    "parts": http(event(content=[{"type": "text", "text": "Blue "}, {"type": "text", "text": "sky"}]) + END),
    "a part": http(event(content={"type": "output_text", "text": "Blue sky"}) + END),
    "whole message of parts": http(
        json.dumps({"choices": [{"message": {"content": [THOUGHT, {"type": "text", "text": "Blue sky"}]}}]}).encode()
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
    "comments and names": http(b": hi\n\nevent: message\nid: 7\nretry: 10\n" + PLAIN.replace(b"\n\n", b"\n\n: x\n\n")),
    "BOM": http(b"\xef\xbb\xbf" + PLAIN),
    "blanks": http(b"\n\ndata:\n\ndata: {}\n\ndata: null\n\n" + PLAIN),
    "done in quotes": http(event(content="Blue sky") + b'data: "[done]"\n\n'),
    "whole as a stream": http(json.dumps(WHOLE).encode()),
    "whole and indented": http(json.dumps(WHOLE, indent=2).encode(), "application/json"),
    "whole with BOM": http(b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), "text/plain"),
    "stream as JSON": http(PLAIN, "application/json"),
    "created": http(json.dumps(WHOLE).encode(), "application/json", "201 Created"),
    "array of pieces": http(b"[" + json.dumps(SKY).encode() + b"]", "application/json"),
    "lines of JSON": http(b'{"message": {"content": "Blue "}}\n{"message": {"content": "sky"}, "done": true}\n'),
    "said again at the end": http(event(content="Blue sky") + chunk(WHOLE) + DONE),
    "message in pieces": http(choice(message={"content": "Blue "}) + choice(message={"content": "sky"}) + END),
    "gzip": packed(gzip.compress(PLAIN), "gzip"),
    "gzip in two parts": packed(gzip.compress(PLAIN[:30]) + gzip.compress(PLAIN[30:]), "x-gzip"),
    "deflate": packed(zlib.compress(PLAIN), "deflate"),
    "raw deflate": packed(raw_deflate(PLAIN), "deflate"),
    "old HTTP": b"HTTP/1.0 200 OK\r\n\r\n" + PLAIN,
    "finish in the delta": http(event(content="Blue sky", finish_reason="stop")),
    "finish at the top": http(event(content="Blue sky") + chunk({"choices": [], "finish_reason": "stop"})),
    "null as a word": http(
        b"".join(choice(delta={"content": one}, finish_reason="null") for one in ("Blue ", "sky")) + DONE
    ),
    "finish in every piece": http(event(content="Blue ", finish="stop") + event(content="sky", finish="stop") + DONE),
    "text after the end": http(event(content="Blue ", finish="stop") + event(content="sky") + DONE),
    "no reason": http(event(content="Blue sky") + DONE),
    "usage alone": http(chunk({"choices": [], "usage": {"prompt_tokens": 3.0}}) + PLAIN),
    "usage in the choice": http(event(content="Blue sky") + choice(finish_reason="stop", usage={"prompt_tokens": 3})),
    "no error": http(PLAIN.replace(b'{"choices"', b'{"error": null, "choices"')),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_in_every_shape(name: str) -> None:
    with answering(ANSWERS[name]) as api, talking(api.url, limits=IMPATIENT) as talk:
        ended = list(talk.ask("Why?"))[-1]
        assert isinstance(ended, GenerationFinished), ended
        assert ended.ending is Ending.COMPLETE
        assert talk.turns.conversation.messages[-1].text == "Blue sky"


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
def test_a_thought_is_told_apart_in_every_shape(name: str) -> None:
    with answering(http(THOUGHTS[name] + PLAIN)) as api, talking(api.url, limits=IMPATIENT) as talk:
        list(talk.ask("Why?"))
        reply = talk.turns.conversation.messages[-1]
        assert reply.text.strip() == "Blue sky"
        assert reply.thinking is not None
        assert reply.thinking.text.strip() == "hm"


ERRORS = {
    "event": (b'event: error\ndata: {"message": "slot failed"}\n\n', "slot failed"),
    "event in words": (b"event: error\ndata: slot failed\n\n", "slot failed"),
    "field": (b'error: {"code": 500, "message": "slot failed"}\n\n', "slot failed"),
    "object": (chunk({"object": "error", "message": "slot failed", "code": 500}), "slot failed"),
    "plain": (b'{"error": {"message": "slot failed"}}\n', "slot failed"),
    "words": (chunk({"error": "slot failed"}), "slot failed"),
    "choice": (choice(delta={}, error={"code": 502, "message": "slot failed"}, finish_reason="error"), "slot failed"),
    "finish": (choice(delta={}, finish_reason="error"), "the server broke off"),
    "code": (chunk({"text": "slot failed", "error_code": 50001}), "slot failed"),
    "gateway": (chunk({"error": {"message": "provider", "metadata": {"raw": "slot failed"}}}), "provider: slot failed"),
    "withheld": (event(finish="content_filter"), "withheld the rest of the answer (content_filter)"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_a_stream_is_a_line_and_keeps_what_came(name: str) -> None:
    body, words = ERRORS[name]
    with answering(stream("Blue", end=body)) as api, talking(api.url, limits=IMPATIENT) as talk:
        failed = list(talk.ask("Why?"))[-1]
        assert isinstance(failed, GenerationFailed)
        assert failed.reason.endswith(words)
        assert talk.turns.conversation.messages[-1].text == "Blue"


REFUSALS = {
    "bad redirect": (http(b"", status="302 Go", more="Location: http://[::1\r\n"), "redirects to an address that is"),
    "redirect to nowhere": (http(b"", status="301 Go"), "which is not followed"),
    "no content": (http(b"", status="204 No Content"), "answers with status 204"),
    "a gateway's page": (http(b"<html>Bad gateway</html>", "text/html", "502 Bad"), "answers with status 502"),
    "words": (http(b"404 page not found\n", "text/plain", "404 No"), "not found: 404 page not found"),
    "a list": (http(b'[{"error": {"code": 400, "message": "bad field"}}]', status="400 No"), "status 400: bad field"),
    "details": (http(b'{"detail": [{"type": "x", "msg": "bad field"}]}', status="422 No"), "status 422: bad field"),
    "packed": (
        http(gzip.compress(b'{"error": "bad field"}'), status="400 No", more="Content-Encoding: gzip\r\n"),
        "status 400: bad field",
    ),
    "overloaded": (http(b"", status="503 No", more="Retry-After: 7\r\n"), "status 503 (try again in 7 s)"),
    "brotli": (packed(b"x", "br"), "sends packed (br) what was asked for as it is"),
    "not packed": (packed(PLAIN, "gzip"), "says that its answer is packed (gzip), and it is not"),
    "bomb": (packed(gzip.compress(bytes(8 << 20)), "gzip"), "sends a line that does not end"),
    "other JSON": (
        http(b'{"status": "ok"}', "application/json"),
        "sends no answer, or one in a form that is not known",
    ),
    "unknown parts": (http(event(content=[{"type": "image_url"}]) + END), "in a form that is not known"),
    "nothing but the end": (http(DONE), "sends no answer"),
    "error for JSON": (http(b'{"detail": "no", "object": "error"}', "application/json"), "no"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_answer_is_a_line_in_every_shape(name: str) -> None:
    answer, words = REFUSALS[name]
    with answering(answer) as api, talking(api.url) as talk:
        (failed,) = list(talk.ask("Why?"))
        assert isinstance(failed, GenerationFailed)
        assert words in failed.reason
        assert "\n" not in failed.reason


def test_lines_without_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MOST_LINES", 1000)
    assert list(streams.events([b"\n" * 4096, b"\r" * 4096, DONE], "host")) == []  # empty ones in a row are one
    with answering(packed(gzip.compress(b": x\n" * 2000), "gzip")) as api, talking(api.url) as talk:
        (failed,) = list(talk.ask("Why?"))
        assert isinstance(failed, GenerationFailed)
        assert failed.reason.endswith("the answer does not end")


def test_a_length_in_another_word_can_be_continued() -> None:
    body = event(content="Blue", finish="MAX_TOKENS") + DONE
    with answering(http(body)) as api, talking(api.url, limits=IMPATIENT) as talk:
        ended = list(talk.ask("Why?"))[-1]
        assert isinstance(ended, GenerationFinished)
        assert ended.ending is Ending.LENGTH


LISTS = {
    "as the API says": b'{"object": "list", "data": [{"id": "m", "meta": null}]}',
    "Ollama": b'{"models": [{"name": "m", "model": "m"}]}',
    "null and models": b'{"data": null, "models": [{"name": "m"}]}',
    "a list": b'[{"id": "m"}, {"id": "m"}]',
    "names": b'{"data": ["m"]}',
    "BOM": b'\xef\xbb\xbf{"data": [{"id": "m"}]}',
}


@pytest.mark.parametrize("name", LISTS)
def test_models_are_listed_in_every_shape(name: str) -> None:
    with answering(models=LISTS[name]) as api, talking(api.url) as talk:
        assert talk.turns.model is not None
        assert talk.turns.model.name == "m"


def test_a_server_without_a_list_takes_the_name_given() -> None:
    with answering(stream("a"), is_listing=False) as api:
        with talking(api.url, "any") as talk:
            list(talk.ask("hi"))
            assert api.bodies[0]["model"] == "any"
        with pytest.raises(AssertionError, match="name one with --model"), talking(api.url):
            pass


def test_an_address_without_its_version_finds_it() -> None:
    with answering(stream("a")) as api, talking(api.url.removesuffix("/v1") + "/api") as talk:
        list(talk.ask("hi"))
        assert api.heads[-1].startswith("POST /api/v1/chat/completions")


def test_silence_after_an_early_end_is_no_failure() -> None:
    body = event(content="Blue ", finish="stop") + event(content="sky", finish="stop") + HANG
    with answering(http(body)) as api, talking(api.url, limits=IMPATIENT) as talk:
        assert isinstance(list(talk.ask("Why?"))[-1], GenerationFinished)

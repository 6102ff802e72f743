"""Fuzz target for answers of model servers: streams and lists of many shapes, changed at random."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from app.backend.remote.exchange import Exchange, Limits
from app.backend.remote.listing import list_server_models
from app.backend.remote.tool_calls import CallCollector, write_calls
from app.program.remote_model import RemoteModel
from app.program.web_refusals import DownloadError
from tests.programs.fuzz.mutation import edge
from tests.programs.fuzz.target import Fault, require_clean_line

_KEY = "sk-secret-of-the-fuzzer"
_LIMITS = Limits(connecting_s=2.0, listing_s=2.0, silence_s=0.4, reply_s=4.0, linger_s=0.2)
_TEXTS = (
    "Blue",
    " sky",
    "",
    "<think>",
    "</think>",
    "\ud83d",
    "\x1b[2J",
    _KEY,
    "<tool_call>{",
    "x" * 5000,
)
_PARTS: tuple[Any, ...] = (
    "Blue", None, 5, [], {}, ["x"], [{"type": "text", "text": "Blue"}],
    {"type": "output_text", "text": {"value": "x"}},
    [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}], [{"type": "image_url"}],
    [[[[[["deep"]]]]]],
)  # fmt: skip
_NAMES = (
    "content",
    "reasoning",
    "reasoning_content",
    "thinking",
    "reasoning_details",
    "refusal",
    "role",
    "text",
)
_CALLS: tuple[Any, ...] = (
    [{"index": 0, "id": "a", "function": {"name": "echo", "arguments": '{"te'}}],
    [{"function": {"arguments": 'xt": 1}'}}],
    [{"index": -1, "id": 5, "function": None}], [{"name": "do", "arguments": {"a": [1]}}],
    {"id": "a"}, "x", [5, None],
    [{"index": 0, "id": "a", "function": {"name": "echo", "arguments": "{}"}}] * 70,
)  # fmt: skip
_FINISHES: tuple[Any, ...] = (
    None, "stop", "length", "null", "", "error", "content_filter", 5, "MAX_TOKENS", "tool_calls",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (
    {"error": {"message": f"no {_KEY}\x1b[31m"}}, {"error": None},
    {"object": "error", "message": "x"}, [], {}, None, 5,
    {"choices": []}, {"choices": None, "usage": {"prompt_tokens": 3.5, "completion_tokens": -1}},
    {"choices": [[]]},
    {"message": {"content": "x"}, "done": True}, {"choices": [{"message": {"content": "whole"}}]},
    {"detail": [{}]},
)  # fmt: skip
_LISTS: tuple[Any, ...] = (
    {"data": [{"id": "m"}]}, {"data": None}, {"models": [{"name": "m"}]}, [{"id": "m"}, 5, "n"],
    {"data": {}},
    {"data": [{"id": "x" * 9000}, {"id": ["m"]}, {"id": "m", "meta": {"n_ctx": 1e99}}]},
)  # fmt: skip
_BREAKS = ("\n\n", "\n", "\r\n\r\n", "\r\r", "\r", "\n\n\n: ping\n\n", "")
_FIELDS = (
    "data: ", "data:", "data: data: ", " data: ", "", "error: ", "event: error\ndata: ",
    "event: x\ndata: ",
    "\ufeffdata: ",
)  # fmt: skip
_LIES = ({}, {"Content-Type": "application/json"}, {"Content-Type": "text/event-stream"},
         {"Content-Encoding": "gzip"},
         {"Content-Encoding": "deflate"}, {"Content-Encoding": "br"},
         {"Content-Encoding": "gzip, gzip"})  # fmt: skip
_HEADS = ("HTTP/1.1 201 Made", "HTTP/1.0 200 OK", "HTTP/1.1 204 No",
          "HTTP/1.1 302 Go\r\nLocation: http://[::1",
          "HTTP/1.1 404 No", "HTTP/1.1 429 No\r\nRetry-After: 9",
          "HTTP/1.1 502 Bad\r\nContent-Type: text/html")  # fmt: skip


def seeds() -> list[dict[str, Any]]:
    """Scripts with an answer of each kind."""
    rng = Random(1)
    return [{"api": [answer(rng)]} for _ in range(40)] + [
        {"api": [{"lies": {"Content-Encoding": "gzip"}, "body": "bomb"}]}
    ]


def answer(rng: Random) -> dict[str, Any]:
    """Return a made-up answer."""
    reply: dict[str, Any] = {"lies": dict(rng.choice(_LIES))}
    packing = {"gzip": "gzip:", "deflate": "deflate:"}.get(
        reply["lies"].get("Content-Encoding", ""), ""
    )
    if rng.random() < 0.2:
        reply["head"] = rng.choice(_HEADS)
    if rng.random() < 0.3:
        body = json.dumps(rng.choice(_LISTS), indent=rng.choice((None, 1)))
    else:
        field = rng.choice(_FIELDS[: rng.randrange(1, 10)])
        ends = rng.choice(_BREAKS)
        events = [_event(rng) for _ in range(rng.randrange(6))]
        body = "".join(_line(rng, field, event) + ends for event in events)
        body += rng.choice(("", "data: [DONE]\n\n", 'data: "[DONE]"'))
    reply["body"] = (packing if rng.random() < 0.8 else "") + body
    if rng.random() < 0.3:
        reply["cut"], reply["pieces"] = (
            rng.choice((50, 150, 300, edge(rng) % 5000)),
            rng.choice((1, 7, 4096)),
        )
    return reply


def _event(rng: Random) -> Any:
    if rng.random() < 0.25:
        return rng.choice(_OTHERS)
    message: dict[str, Any] = {rng.choice(_NAMES): rng.choice(_TEXTS)}
    if rng.random() < 0.4:
        message[rng.choice(_NAMES)] = rng.choice(_PARTS)
    if rng.random() < 0.3:
        message["tool_calls"] = rng.choice(_CALLS)
    field = rng.choice(("delta", "delta", "delta", "message", "text"))
    return {
        "choices": [
            {
                "index": 0,
                field: message,
                "finish_reason": rng.choice(_FINISHES) if rng.random() < 0.4 else None,
            }
        ]
    }


def _line(rng: Random, field: str, event: Any) -> str:
    text = json.dumps(event, indent=1 if rng.random() < 0.1 else None)
    if rng.random() < 0.1:
        index = rng.randrange(len(text) + 1)
        text = text[:index] + "\n" + text[index:]
    return field + text.replace("\n", "\n" + field)


def ask(address: str) -> str:
    """Ask for a reply, and check that it is sound or one clean line."""
    calls = CallCollector()
    n_chars = 0
    try:
        for piece in Exchange(RemoteModel(f"{address}/v1"), _KEY, _LIMITS).reply_chunks(
            "/chat/completions", {"tools": []}
        ):
            (piece.answer + piece.thought + piece.finish).encode()  # no halves of characters
            n_chars += len(piece.answer) + len(piece.thought)
            for fragment in piece.calls:
                calls.push(fragment)
    except DownloadError as error:
        return _line_of(error)
    tool_calls, invalid = calls.calls()
    if len({tool_call.call_id for tool_call in tool_calls}) != len(tool_calls):
        raise Fault("two calls have one id")
    write_calls(tool_calls).encode()
    return f"api: {min(n_chars, 1)} {min(len(tool_calls), 2)} {min(len(invalid), 1)}"


def ask_models(address: str) -> str:
    """Ask for the list of models."""
    try:
        return (
            f"models: "
            f"{min(2, len(list_server_models(Exchange(RemoteModel(f'{address}/v1'), _KEY, _LIMITS))))}"
        )
    except DownloadError as error:
        return _line_of(error)


def _line_of(error: DownloadError) -> str:
    if _KEY in str(error):
        raise Fault("the key is told")
    return "api: " + require_clean_line(f"jalopy: {error}")

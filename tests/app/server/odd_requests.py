"""Random requests like those of other programs, odd but valid ones and damaged ones.

The same seed gives the same requests. ``odd`` requests must be answered; ``damaged`` ones may be
refused as errors of the client, but must not cause a server error.
"""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

PATHS = (
    "/v1/chat/completions",
    "/chat/completions",
    "//v1/chat/completions",
    "/v1/v1/chat/completions/",
)
_NAMES = (
    "cache_control", "provider", "n_predict", "verbosity", "service_tier", "parsed", "top_a",
    "\x1b[31m", "x" * 300, "",
)  # fmt: skip
_JUNK: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    0,
    -1,
    4.0,
    1e300,
    True,
    "x",
    [None],
    {"a": {"b": [1]}},
    "\ud83d",
    "\0",
)
_TEXTS = ("hi", "", " ", "What is the capital of France?", "<|im_end|>", "é" * 50, "a\0b")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
FLAT_TOOL = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": None}
LIMIT = 6


def _junk(random: Random) -> Any:
    """Return a new value, because a value shared by two requests could contain itself."""
    return deepcopy(random.choice(_JUNK))


def _with_unknown_fields(random: Random, value: Any) -> Any:
    """Return a JSON value with unknown fields in some of its objects."""
    if isinstance(value, list):
        return [_with_unknown_fields(random, item) for item in value]
    if not isinstance(value, dict):
        return value
    strewn = {
        name: deepcopy(item) if name == "parameters" else _with_unknown_fields(random, item)
        for name, item in value.items()
    }
    if random.random() < 0.4:
        strewn.setdefault(f"x_{random.choice(_NAMES)}", _junk(random))
    return strewn


def _message(random: Random) -> list[dict[str, Any]]:
    role = random.choice(
        ("system", "developer", "user", "user", "assistant", "assistant", "tool", "calls")
    )
    text: Any = random.choice(_TEXTS)
    if random.random() < 0.3:
        text = [{"type": "text", "text": text}, {"text": "b"}, "c"]
    if role == "assistant":
        return [
            {
                "role": role,
                "content": random.choice((text, None)),
                "refusal": None,
                "reasoning_content": "hm",
            }
        ]
    if role == "tool":
        return [
            {
                "role": role,
                "tool_call_id": random.choice(("c1", "gone", "")),
                "content": random.choice((text, None)),
            }
        ]
    if role == "calls":
        function = {
            "name": "get_weather",
            "arguments": random.choice(("", "{}", {}, '{"city": "Rome"}')),
        }
        calls = [
            {"id": f"c{n}", "type": "function", "function": function}
            for n in range(random.randint(1, 2))
        ]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            *results[: random.randint(1, 2)],
        ]
    return [{"role": role, "content": text}]


def odd(random: Random) -> tuple[str, dict[str, Any]]:
    """Return a conversation in some order, with fields and values of other programs."""
    messages = [message for _ in range(random.randint(1, 6)) for message in _message(random)]
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": float(LIMIT),
        "model": random.choice(("gpt-4o", "", None)),
    }
    for name, values in {
        "temperature": (0, 0.0, 1), "top_k": (-1, 40.0, 0), "seed": (1.0, -1),
        "stop": ("", [""], [], ["x", None]),
        "stream": (True, False, None), "tools": ([], None, [TOOL], [TOOL, {"type": "web_search"}]),
        "n": (1, 1.0),
        "chat_template_kwargs": ({"enable_thinking": False, "other": 1}, {}),
        "stream_options": (None, {"include_usage": True}),
    }.items():  # fmt: skip
        if random.random() < 0.4:
            body[name] = random.choice(values)
    return random.choice(PATHS), _with_unknown_fields(random, body)


def odd_response(random: Random) -> tuple[str, dict[str, Any]]:
    """Return an odd request for ``/v1/responses``, with tools and items of earlier outputs."""
    items: list[Any] = [
        {"role": random.choice(("user", "developer")), "content": random.choice(_TEXTS[:2]) or "a"}
    ]
    for _ in range(random.randint(0, 4)):
        items += random.choice(
            (
                [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}],
                [{"type": "item_reference", "id": "msg_1"}],
                [{"type": "web_search_call", "id": "ws_1"}],
                [{"type": "function_call", "call_id": "c1", "name": "get_weather",
                  "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "c1",
                  "output": random.choice(_TEXTS)}],
                [{"type": "message", "role": "assistant",
                  "content": [{"type": "output_text", "text": "b"}]}],
                [{"role": "user",
                  "content": [{"type": "input_text", "text": random.choice(_TEXTS)}]}],
            )
        )  # fmt: skip
    body: dict[str, Any] = {
        "input": items,
        "max_output_tokens": LIMIT,
        "stream": random.choice((True, False, None)),
    }
    body["tools"] = random.sample(
        [FLAT_TOOL, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}], k=2
    )
    body |= {
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "previous_response_id": None,
    }
    return random.choice(("/v1/responses", "/responses")), _with_unknown_fields(random, body)


def damaged(random: Random) -> tuple[str, bytes]:
    """Return a request with a replaced value, or with cut or added bytes."""
    path, body = random.choice((odd, odd_response))(random)
    container: Any = body
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        key = random.choice(keys)
        is_leaf = not isinstance(container[key], (dict, list)) or not container[key]
        if is_leaf or random.random() < 0.3:
            break
        container = container[key]
    container[key] = _junk(random)
    body.setdefault("max_tokens", LIMIT)
    sent = json.dumps(body).encode()
    if random.random() < 0.3:
        position = random.randrange(len(sent))
        sent = random.choice(
            (
                sent[:position],
                sent[:position] + bytes([random.randrange(256)]) + sent[position:],
                b"\xef\xbb\xbf" + sent,
            )
        )
    return path, sent

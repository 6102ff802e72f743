"""Valid requests with one value replaced by a hostile one, at every path of every known field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

ValuePath = tuple[str | int, ...]
"""Keys and indexes that lead to a value in a request's body."""

TOO_LARGE = "@1e400@"
"""Placeholder for a number too large for a float."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, -0.0, 1.5, 2**31, 2**63, 2**70, -(2**70), 10**309, TOO_LARGE,
    "", " ", "x", "\ud800", "a\0b", "<|im_end|>", "<|im_start|>user\n", "<tool_call>{}", "\x1b[31m",
    "x" * 5000, "{",
    "json",
    [], [None], [[]], [{}], ["\ud800"], ["<|im_end|>"], [1.5], {}, {"": None}, {"type": []},
    {"type": "\ud800"}, {"type": "object"}, {"\ud800": "\ud800"},
)  # fmt: skip

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}},
    "required": ["city"],
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"city": "Rome"}'},
}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Tells.", "parameters": CITY},
}
SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "typical_p": 1, "top_n_sigma": -1,
    "xtc_probability": 0, "xtc_threshold": 0.1, "repetition_penalty": 1.1, "repeat_penalty": 1.1,
    "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0.5, "dry_base": 1.75,
    "top_k": 5, "repeat_last_n": 8,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "logit_bias": {"5": 1, " a": -1},
    "ignore_eos": False,
    "seed": 7,
}  # fmt: skip
CHAT: dict[str, Any] = {
    **SAMPLING,
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "hi"}, "there"]},
        {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "hm",
         "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "look_up", "content": "Rain"},
        {"role": "user", "content": "And now?"},
    ],
    "max_tokens": 2, "max_completion_tokens": 2, "n_predict": 2, "stop": ["END"], "stream": False,
    "n": 1, "stream_options": {"include_usage": True, "include_obfuscation": False},
    "logprobs": True, "top_logprobs": 1, "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "parallel_tool_calls": True, "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False}, "user": "u", "metadata": {"a": "b"},
    "service_tier": "auto", "best_of": 1, "echo": False, "suffix": "", "modalities": ["text"],
    "functions": [], "function_call": "none", "continue_final_message": False,
    "add_generation_prompt": True, "extra_body": {"top_k": 3},
}  # fmt: skip
FORMS: dict[str, Any] = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "strict": True, "schema": {"enum": ["a"]}},
    },
    "grammar": 'root ::= "a"',
    "json_schema": {"const": "a"},
    "guided_json": {"const": 1},
    "guided_regex": "a|b",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'start: "a"',
    "regex": "a",
    "ebnf": 'root ::= "a"',
    "structured_outputs": {"choice": ["a"]},
    "structural_tag": None,
    "format": {"enum": ["a"]},
    "text": {
        "format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a"]}},
        "verbosity": "low",
    },
    "output_format": {"type": "json_schema", "schema": {"const": "a"}},
    "response_schema": {"const": "a"},
}
"""Fields that request a form from this or another server."""
RESPONSE: dict[str, Any] = {
    **SAMPLING,
    "model": "m",
    "input": [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}",
         "status": "completed"},
        {"type": "function_call_output", "call_id": "c1",
         "output": [{"type": "input_text", "text": "Rain"}]},
        {"role": "user", "content": "And now?"},
    ],
    "instructions": "Be kind.", "max_output_tokens": 2, "stream": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [{"type": "function", "name": "look_up", "parameters": CITY}, {"type": "web_search"}],
    "tool_choice": "auto", "include": ["reasoning.encrypted_content"], "store": False,
    "truncation": "auto", "previous_response_id": None, "background": False,
    "stream_options": {"include_obfuscation": False},
}  # fmt: skip
COMPLETION: dict[str, Any] = {
    **SAMPLING, "model": "m", "prompt": "Once", "max_tokens": 2, "stop": "END", "stream": False,
    "n": 1, "logprobs": 1, "best_of": 1, "echo": False, "suffix": "", "samplers": ["top_k"],
}  # fmt: skip
OLLAMA_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "hi", "images": []},
        {"role": "assistant", "content": "",
         "tool_calls": [{"function": {"name": "look_up", "arguments": CITY}}]},
        {"role": "tool", "content": "Rain", "tool_name": "look_up"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [TOOL], "options": {**SAMPLING, "num_predict": 2, "stop": ["END"]}, "stream": False,
    "think": False,
    "keep_alive": "5m",
}  # fmt: skip
OLLAMA_TEXT: dict[str, Any] = {
    "model": "m", "prompt": "Once", "system": "Be brief.", "template": "", "suffix": "",
    "images": [], "raw": False, "context": [1], "options": {"num_predict": 2}, "stream": False,
    "think": None, "keep_alive": -1,
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    **SAMPLING,
    "model": "m", "max_tokens": 2, "stream": False, "stop_sequences": ["END"],
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "hi"},
            {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"city": "Paris"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "is_error": False,
             "content": [{"type": "text", "text": "Rain"}]},
        ]},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"name": "look_up", "description": "d", "input_schema": CITY}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
}  # fmt: skip
INFILL: dict[str, Any] = {
    **SAMPLING,
    "input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "c"}],
    "prompt": "d", "n_predict": 2, "n_indent": 1, "t_max_predict_ms": 100, "samplers": ["infill"],
    "response_fields": ["content"], "stop": ["END"], "stream": False, "id_slot": 0,
}  # fmt: skip

BODIES: dict[str, dict[str, Any]] = {
    "/infill": INFILL,
    "/v1/messages": MESSAGE,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/completions": COMPLETION,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_TEXT,
}
"""Valid bodies, by the path of their requests.

Each body has all known fields of its path that do not exclude each other.
"""


def forms_of(path: str) -> Iterator[dict[str, Any]]:
    """Yield a small body of a path with each form in turn."""
    needed = {"messages", "input", "prompt", "max_tokens", "max_output_tokens", "options", "stream"}
    body = {name: value for name, value in BODIES[path].items() if name in needed}
    for name, value in FORMS.items():
        yield {**body, name: value}


def paths_of(value: Any, path: ValuePath = ()) -> Iterator[ValuePath]:
    """Yield the path of every value in a body, including objects and lists."""
    if path:
        yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield from paths_of(item, (*path, key))


def exchanged(body: dict[str, Any], path: ValuePath, value: Any) -> dict[str, Any]:
    """Return a body with another value at a path."""
    changed = deepcopy(body)
    container: Any = changed
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = value
    return changed


def sent(body: Any) -> bytes:
    """Return the bytes of a body for HTTP."""
    return json.dumps(body).replace(f'"{TOO_LARGE}"', "1e400").encode()


def fault_of(path: str, status: int, text: str) -> str:
    """Return the fault in the answer to a hostile request.

    "" if a client can use the answer.
    """
    if status >= 500 and status not in (501, 503):
        return f"status {status}"
    if "internal error" in text or '"server_error"' in text:
        return "a fault of the server"
    lines = [
        line.removeprefix("data: ")
        for line in text.splitlines()
        if line.startswith(("data: ", "{"))
    ]
    answers = []
    for line in lines:
        if line == "[DONE]":
            continue
        try:
            answers.append(json.loads(line))
        except ValueError:
            return "no JSON"
    if not answers or not all(isinstance(answer, dict) for answer in answers):
        return "no objects"
    if status < 400:
        return ""
    error = answers[0].get("error")
    message = (
        error
        if path.startswith("/api/")
        else error.get("message")
        if isinstance(error, dict)
        else None
    )
    if (
        not isinstance(message, str)
        or not message
        or not message.isprintable()
        or len(message) > 400
    ):
        return "no message in the words of the API"
    return ""

"""Requests of all APIs to a server with a tiny model.

Each is answered, or refused in the words of its API.

An input is a JSON object: the ``path`` and the ``body`` of a request. Bodies start sound, with
every field that is known, and change value by value, by fields of others, and byte by byte.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import httpx

from app.server import log as server_log
from tests.app.server.hostile_values import (
    BODIES,
    FORMS,
    VALUES,
    ValuePath,
    exchanged,
    fault_of,
    forms_of,
    paths_of,
    sent,
)
from tests.app.server.odd_requests import odd, odd_response
from tests.app.server.tiny_server import tiny_server
from tests.programs.fuzz.forms import made_schema
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch

_CPU_S = 20.0
_MEMORY_BYTES = 200 << 20
"""Limits on one request, which writes some tokens."""
_MAX_TOKENS = 4
_LIMITS = {
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "max_output_tokens",
    "num_predict",
    "n",
}
"""Fields that would have an answer last for long; they stay as they are."""
_SOUND = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def seeds() -> list[bytes]:
    """Sound requests of each API, and for each form that may be asked for."""
    bodies = [(path, body) for path in BODIES for body in (BODIES[path], *forms_of(path))]
    return [_pack(path, _bounded(body)) for path, body in bodies]


def _pack(path: str, body: Any) -> bytes:
    return json.dumps({"path": path, "body": body}).encode()


def _bounded(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body that asks for a few tokens, whatever else it says."""
    limits = {"max_tokens": _MAX_TOKENS, "max_output_tokens": _MAX_TOKENS}
    options = body.get("options")
    options = {**(options if isinstance(options, dict) else {}), "num_predict": _MAX_TOKENS}
    return {**body, **limits, "options": options}


# ---- what is made


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Return a changed request."""
    request = json.loads(data)
    path = request["path"]
    body = request["body"]
    choice = rng.randrange(8)
    if choice == 0:
        body = odd(rng)[1] if "responses" not in path else odd_response(rng)[1]
    elif choice == 1:
        path = rng.choice(list(BODIES))
    elif choice == 2:
        body = {**body, rng.choice(list(FORMS)): made_schema(rng, 3)}
    elif choice == 3:
        donor = json.loads(rng.choice(inputs))["body"]
        names = rng.sample(sorted(donor), min(len(donor), 3)) if isinstance(donor, dict) else []
        body = {**body, **{name: donor[name] for name in names}}
    elif choice == 4:
        donor = json.dumps(json.loads(rng.choice(inputs))["body"]).encode()
        body = _read(mutate_bytes(rng, json.dumps(body).encode(), [donor]), body)
    else:
        for _ in range(rng.choice((1, 1, 2, 3))):
            body = exchanged(body, _place(rng, body), rng.choice((*VALUES, made_schema(rng, 2))))
    return _pack(path, _bounded(body))


def _place(rng: Random, body: dict[str, Any]) -> ValuePath:
    return rng.choice([path for path in paths_of(body) if path[-1] not in _LIMITS])


def _read(text: bytes, otherwise: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a damaged text; another one where it is none."""
    try:
        body = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return otherwise
    return body if isinstance(body, dict) else otherwise


# ---- what must hold


_open = ExitStack()
"""Resources of the server; they last as long as this process, or until ``close``."""


@lru_cache(maxsize=1)
def _client() -> httpx.Client:
    """Return the client of a server, which is started when it is first needed and logs nothing."""
    atexit.register(close)
    _open.enter_context(patch.object(server_log, "say"))
    folder = _open.enter_context(TemporaryDirectory(prefix="jalopy-fuzz-model-"))
    return _open.enter_context(tiny_server(Path(folder)))


def close() -> None:
    """End the server; another input starts it again."""
    _client.cache_clear()
    _open.close()


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Send a request, then a sound one."""
    request = json.loads(data)
    client = _client()
    path = request["path"]
    with watch.bounded("a request", _CPU_S, _MEMORY_BYTES):
        answer = client.post(path, content=sent(request["body"]))
    if fault := fault_of(path, answer.status_code, answer.text):
        raise Fault(f"{fault}: {answer.text[:200]}")
    if client.post("/v1/chat/completions", content=sent(_SOUND)).status_code != 200:
        raise Fault("a sound request fails after this one")
    return f"{path} {answer.status_code} {_kind(answer)}"


def _kind(answer: httpx.Response) -> str:
    """Return which field a refusal names, or how an answer comes."""
    if answer.status_code < 400:
        return answer.headers["content-type"].partition(";")[0]
    error = answer.json().get("error")
    param = error.get("param") if isinstance(error, dict) else None
    return "".join(char for char in str(param) if not char.isdigit())[:60]


TARGET = Target(
    seeds,
    mutate,
    run,
    (
        "app/server/message_fields.py",
        "app/server/completion_request.py",
        "app/server/dialects/openai_request.py",
        "app/server/dialects/responses_request.py",
        "app/server/message_order.py",
        "app/server/sampling_fields.py",
        "app/server/form_fields.py",
        "app/server/fields.py",
        "app/server/dialects/ollama.py",
    ),
)

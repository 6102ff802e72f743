"""Server in this process with a tiny real model of random weights, whose template has tools."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx

from app.program.settings import built_in_settings
from app.server.command import listen
from app.server.http_server import HttpServer
from tests.engine import tiny_gguf

PATIENCE_S = 120.0
N_CTX = 1024
TEMPLATE = """{% if tools %}<tool_call>{{ tools | tojson }}
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@contextmanager
def tiny_server(
    folder: Path,
    marks: Mapping[str, int] | None = None,
    described: tiny_gguf.TinyGGUF | None = None,
    suffix_first: bool = False,
    saves: bool = False,
) -> Iterator[httpx.Client]:
    """Run the server until the end of the block, and yield a client for it.

    Args:
        folder: Folder for the model.
        marks: Ids of the marks for filling in, by the names of the file's fields.
        described: Description of the model; None for a usual one.
        suffix_first: Whether the text after a gap comes first.
        saves: Whether the states of the cache are saved.
    """
    if described is None:
        described = tiny_gguf.model("qwen2", context_length=N_CTX, vocabulary="bpe")
    described.set("tokenizer.chat_template", TEMPLATE)
    for name, token_id in (marks or {}).items():
        described.set(f"tokenizer.ggml.fim_{name}_token_id", token_id)
    path = described.write(folder / "m.gguf")
    listener = listen("127.0.0.1", 0)
    settings = replace(built_in_settings(), threads=1)
    if not saves:
        settings = replace(settings, save_conversations="off")
    running = HttpServer(
        path, settings, listener, "m", ("127.0.0.1",), "", 16, suffix_first=suffix_first
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False, verify=False)
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while client.get("/health").status_code != 200:
            if time.monotonic() > deadline_s:
                raise TimeoutError("the model is not open")
            time.sleep(0.05)
        yield client
    finally:
        client.close()
        loop = running._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(running._shut_down, 0)
        thread.join(PATIENCE_S)
        listener.close()

"""Ollama's words about models: which there are, which are open, what one can do.

None is opened to answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.models.library.header import ModelHeader
from app.models.library.model_files import StoredModel
from app.program.background import in_background
from app.server.completion_request import LATEST
from app.server.dialects.ollama import as_time
from app.server.fields import read_json
from app.server.model_pool import Models
from app.server.transfer import BodyReader, JsonBody
from app.text import figures
from app.text.clean_text import clean_line
from engine import read_gguf
from engine.measure import fit as fitting
from engine.prompt.thought_markers import THOUGHT_MARKERS
from engine.prompt.tools.formats import format_of

VERSION = "0.12.0"
"""Of the API that is followed: editors refuse older ones."""
_NEVER_S = 100 * 365 * 86400.0


class OllamaModels:
    """Answers what Ollama's clients ask about models."""

    def __init__(self, models: Models, bodies: BodyReader) -> None:
        self._models = models
        self._bodies = bodies

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/version", self.version),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.opened),
            Route("/api/show", self.show, methods=["POST"]),
        ]

    async def version(self, request: Request) -> Response:
        """Tell which API this is."""
        return JsonBody({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        """List the models that requests may name."""
        listed = await self._models.listed()
        return JsonBody({"models": [_entry(name, *found) for name, found in listed.items()]})

    async def opened(self, request: Request) -> Response:
        """List those that are open."""
        listed = await self._models.listed()
        found = []
        for name, model in self._models.opened.items():
            if name in listed and model.n_ctx:
                left_s = self._models.left_s(model)
                expires_at = as_time(time.time() + (_NEVER_S if left_s is None else left_s))
                open_now = {"expires_at": expires_at, "size_vram": 0, "context_length": model.n_ctx}
                found.append(_entry(name, *listed[name]) | open_now)
        return JsonBody({"models": found})

    async def show(self, request: Request) -> Response:
        """Tell what a model is and what it can do."""
        wanted = await self._bodies.read(request, _model_of)
        name = await self._models.meant(wanted)
        file, header = (await self._models.listed())[name]
        template = await asyncio.wrap_future(
            in_background(lambda: _template_of(file.path), "template")
        )
        about = _entry(name, file, header)
        family = clean_line(header.architecture, 24)
        opened = self._models.opened.get(name)
        if opened is not None:
            n_ctx = opened.n_ctx
        else:
            n_ctx = 0
        if not n_ctx and header.needs is not None:
            n_ctx = self._models.settings.context_size or fitting.default_context(header.needs)
        info = {"general.architecture": family, "general.parameter_count": header.parameters}
        can = {
            "completion": True,
            "tools": format_of(template) is not None,
            "thinking": any(one.opening in template for one in THOUGHT_MARKERS),
        }
        return JsonBody(
            {
                "modelfile": "",
                "parameters": "",
                "template": template,
                "license": clean_line(header.licence, 40),
                "details": about["details"],
                "model_info": info | {f"{family}.context_length": n_ctx},
                "capabilities": [name for name, is_there in can.items() if is_there],
                "modified_at": about["modified_at"],
            }
        )


def _model_of(body: bytes) -> str:
    """Return the name of the model that a request is about."""
    fields = read_json(body)
    return fields.text("model") or fields.text("name") or ""


def _entry(name: str, file: StoredModel, header: ModelHeader) -> dict[str, Any]:
    if ":" in name:
        tagged = name
    else:
        tagged = name + LATEST
    family = clean_line(header.architecture, 24)
    identity = f"{file.path} {file.size_bytes} {file.mtime_ns}".encode("utf-8", "replace")
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": as_time(file.mtime_ns / 1e9),
        "size": file.size_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),  # another file, another digest
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": figures.parameters(header.parameters),
            "quantization_level": clean_line(header.quantization, 12),
        },
    }


def _template_of(path: Path) -> str:
    """Return a file's chat template; "" where it has none."""
    try:
        with closing(read_gguf(path, keeps_strings=False)) as gguf:
            template = gguf.metadata.get("tokenizer.chat_template")
    except Exception:  # who opens it is told what is wrong with it
        return ""
    if isinstance(template, str):
        return template
    return ""

"""Ollama's dialect about models: which exist, which are open, and what a model can do.

No model is opened to answer.
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

from app.models.library.encoders import sees_pictures
from app.models.library.header import ModelHeader
from app.models.library.model_files import StoredModel
from app.program.background import in_background
from app.server.completion_request import LATEST
from app.server.dialects.ollama import format_time
from app.server.fields import read_json
from app.server.model_pool import ModelPool
from app.server.transfer import BodyReader, JsonResponse
from app.text import figures
from app.text.clean_text import clean_line
from engine import read_gguf
from engine.measure import fit as fitting
from engine.prompt.thinking import THOUGHT_MARKERS
from engine.prompt.tools.formats import format_of
from engine.tokenizer.infill_marks import has_infill_marks

VERSION = "0.12.0"
"""Version of the API. Editors refuse older ones."""
_NEVER_S = 100 * 365 * 86400.0
"""Time until a model expires that is never closed."""


class OllamaModels:
    """Routes about models."""

    def __init__(self, models: ModelPool, bodies: BodyReader) -> None:
        self._models = models
        self._bodies = bodies

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/version", self.version),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.open_models),
            Route("/api/show", self.show, methods=["POST"]),
        ]

    async def version(self, http_request: Request) -> Response:
        """Return the version of the API."""
        return JsonResponse({"version": VERSION})

    async def tags(self, http_request: Request) -> Response:
        """List the models that requests may name."""
        files = await self._models.list_files()
        entries = [_entry(name, file, header) for name, (file, header) in files.items()]
        return JsonResponse({"models": entries})

    async def open_models(self, http_request: Request) -> Response:
        """List the open models."""
        files = await self._models.list_files()
        entries = []
        for name, model in self._models.opened.items():
            if name not in files or not model.n_ctx:
                continue
            idle_s = self._models.remaining_idle_s(model)
            expires_in_s = _NEVER_S if idle_s is None else idle_s
            file, header = files[name]
            entries.append(
                _entry(name, file, header)
                | {
                    "expires_at": format_time(time.time() + expires_in_s),
                    "size_vram": 0,
                    "context_length": model.n_ctx,
                }
            )
        return JsonResponse({"models": entries})

    async def show(self, http_request: Request) -> Response:
        """Describe a model and its capabilities."""
        requested_name = await self._bodies.read(http_request, _read_model_name)
        name = await self._models.resolve(requested_name)
        file, header = (await self._models.list_files())[name]
        template, can_fill_in = await asyncio.wrap_future(
            in_background(lambda: _read_abilities(file.path), "template")
        )
        mmproj = self._models.settings.pictures.mmproj
        sees = await asyncio.wrap_future(
            in_background(lambda: sees_pictures(file, header, mmproj), "mmproj")
        )

        entry = _entry(name, file, header)
        architecture = clean_line(header.architecture, 24)
        supported = {
            "completion": True,
            "insert": can_fill_in,
            "tools": format_of(template) is not None,
            "vision": sees,
            "thinking": any(marker.opening in template for marker in THOUGHT_MARKERS),
        }
        return JsonResponse(
            {
                "modelfile": "",
                "parameters": "",
                "template": template,
                "license": clean_line(header.licence, 40),
                "details": entry["details"],
                "model_info": {
                    "general.architecture": architecture,
                    "general.parameter_count": header.parameters,
                    f"{architecture}.context_length": self._context_size(name, header),
                },
                "capabilities": [name for name, is_there in supported.items() if is_there],
                "modified_at": entry["modified_at"],
            }
        )

    def _context_size(self, name: str, header: ModelHeader) -> int:
        """Return the tokens of a model's context: as it is open, or else as it would be opened."""
        model = self._models.opened.get(name)
        if model is not None and model.n_ctx:
            return model.n_ctx
        if header.needs is None:
            return 0
        return self._models.settings.context_size or fitting.default_context(header.needs)


def _read_model_name(body: bytes) -> str:
    fields = read_json(body)
    return fields.text("model") or fields.text("name") or ""


def _entry(name: str, file: StoredModel, header: ModelHeader) -> dict[str, Any]:
    tagged_name = name if ":" in name else name + LATEST
    architecture = clean_line(header.architecture, 24)
    # The digest changes with the file.
    identity = f"{file.path} {file.size_bytes} {file.mtime_ns}".encode("utf-8", "replace")
    return {
        "name": tagged_name,
        "model": tagged_name,
        "modified_at": format_time(file.mtime_ns / 1e9),
        "size": file.size_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": architecture,
            "families": [architecture],
            "parameter_size": figures.parameters(header.parameters),
            "quantization_level": clean_line(header.quantization, 12),
        },
    }


def _read_abilities(path: Path) -> tuple[str, bool]:
    """Return the chat template of a file, "" if it has none, and whether its model can fill in a
    gap. A file that cannot be read has neither."""
    try:
        with closing(read_gguf(path)) as gguf:
            template = gguf.metadata.get("tokenizer.chat_template")
            can_fill_in = has_infill_marks(gguf.metadata)
    except Exception:  # A client that opens the model gets the error.
        return "", False
    if isinstance(template, str):
        return template, can_fill_in
    return "", can_fill_in

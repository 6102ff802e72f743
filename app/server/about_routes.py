"""The routes that only tell: which model, how it does, what has been counted."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.program.version import installed_version
from app.server.api_error import ApiError
from app.server.engine_thread import EngineThread
from app.server.metrics import Metrics
from app.server.text_routes import TextRoutes
from app.server.transfer import JsonBody


class AboutRoutes:
    """Tells about the server."""

    def __init__(self, engine: EngineThread, texts: TextRoutes, model_id: str, metrics: Metrics) -> None:
        self._engine, self._texts, self._model_id, self._metrics = engine, texts, model_id, metrics
        self._started = int(time.time())

    async def health(self, request: Request) -> Response:
        """Say whether the model is open."""
        self._texts.served()
        return JsonBody({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """List the one model."""
        return JsonBody({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Tell about the one model."""
        wanted = request.path_params["model_id"]
        if wanted != self._model_id:
            shown = wanted[:60]
            message = f'model "{shown}" is not served here (served: {self._model_id})'
            raise ApiError(message, 404, "model", "model_not_found")
        return JsonBody(self._model())

    async def metrics(self, request: Request) -> Response:
        """Return the counters."""
        served = self._engine.served
        running, n_ctx = int(self._engine.running is not None), served.n_ctx if served is not None else 0
        text = self._metrics.text(running, self._engine.n_waiting, n_ctx)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def props(self, request: Request) -> Response:
        """Tell what llama-server tells about a model."""
        served = self._texts.served()
        sampling = {**served.sampling, "repeat_last_n": served.sampling["repeat_window"]}
        del sampling["repeat_window"]
        return JsonBody(
            {
                "default_generation_settings": {"n_ctx": served.n_ctx, "params": sampling},
                "total_slots": 1,
                "model_alias": self._model_id,
                "model_name": served.name,
                "chat_template": served.template,
                "bos_token": served.bos_text,
                "eos_token": served.eos_text,
                "modalities": {"vision": False, "audio": False},
                "build_info": f"jalopy {installed_version()}",
            }
        )

    def _model(self) -> dict[str, Any]:
        model: dict[str, Any] = {
            "id": self._model_id, "object": "model", "created": self._started, "owned_by": "jalopy",
        }  # fmt: skip
        served = self._engine.served
        if served is not None:
            model["meta"] = {
                "n_vocab": served.vocab_size,
                "n_ctx": served.n_ctx,
                "n_embd": served.n_embd,
                "size": served.weights_bytes,
                "quantization": served.quantization,
            }
        return model

"""The routes of the server, behind their guard."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from app.server.about_routes import AboutRoutes
from app.server.api_error import ApiError
from app.server.engine_thread import EngineThread
from app.server.guard import Guard, refusal
from app.server.metrics import Metrics
from app.server.text_routes import TextRoutes


def make_application(
    engine: EngineThread, model_id: str, names: Collection[str], api_key: str, log: Callable[[str], object]
) -> Guard:
    """Return the ASGI application.

    Args:
        names: host names by which the server may be called.
        log: takes a line about each request, without a word of what is said in it.
    """
    metrics = Metrics()
    texts = TextRoutes(engine, model_id, metrics, log)
    about = AboutRoutes(engine, texts, model_id, metrics)
    routes = [
        Route("/v1/chat/completions", texts.chat, methods=["POST"]),
        Route("/v1/completions", texts.complete, methods=["POST"]),
        Route("/v1/responses", texts.respond, methods=["POST"]),
        Route("/v1/models", about.models),
        Route("/v1/models/{model_id:path}", about.model),
        Route("/health", about.health),
        Route("/metrics", about.metrics),
        Route("/props", about.props),
        Route("/tokenize", texts.tokenize, methods=["POST"]),
        Route("/detokenize", texts.detokenize, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route, ApiError: _refuse})
    app.router.redirect_slashes = False
    paths = {route.path for route in routes}

    def note(scope: Scope, status: int) -> None:
        path = scope["path"]
        metrics.note_request(path if path in paths else "other", status)
        log(f"{scope['method']} {path[:80]} {status or 'client left'}")

    return Guard(app, names, api_key, note)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    if error.status_code == 405:
        return refusal(ApiError(f"{request.method} is not possible at {path}", 405, code="method_not_allowed"))
    return refusal(ApiError(f"there is nothing at {path}", error.status_code, code="not_found"))

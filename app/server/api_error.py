"""Refusals of the API: an HTTP status and the error object that its clients know."""

from __future__ import annotations

from typing import Any

from app.text.clean_text import clean_line

MOST_CHARS = 300
INVALID = "invalid_request_error"
SERVER = "server_error"
RETRY_S = 2
"""After how long a client may try again what was refused for a while."""


class ApiError(Exception):
    """The reason why a request is refused or not answered.

    Args:
        message: one line; cleaned and bounded here.
        status: of HTTP.
        param: the field, such as ``messages[2].content``.
        code: a word for programs.
        kind: ``invalid_request_error`` or ``server_error``.
        retry_s: after how many seconds it may be tried again; None for never.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        retry_s: int | None = None,
    ) -> None:
        self.message = clean_line(message, MOST_CHARS)
        super().__init__(self.message)
        self.status, self.param, self.code, self.kind, self.retry_s = status, param, code, kind, retry_s

    def body(self) -> dict[str, Any]:
        """Return the object that is sent."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unsupported(param: str, why: str) -> ApiError:
    """Return the refusal of something that the API knows and this server does not do."""
    return ApiError(f"{param} {why}", param=param, code="unsupported_parameter")


def unavailable(message: str, code: str) -> ApiError:
    """Return the refusal of what may be possible a little later."""
    return ApiError(message, 503, code=code, kind=SERVER, retry_s=RETRY_S)

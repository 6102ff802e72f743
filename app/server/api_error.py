"""Errors of the API: an HTTP status, and the error object that clients know."""

from __future__ import annotations

from typing import Any, TypeVar

from app.text.clean_text import clean_line

MAX_CHARS = 300
"""Limit on the characters of a message."""
E = TypeVar("E", bound=BaseException)


class ApiError(Exception):
    """Reason why a request is refused or its reply breaks off.

    Args:
        message: One line, which is cleaned and shortened here.
        status: HTTP status.
        param: Path of the field, such as ``messages[2].content``; None if no field is wrong.
        code: Word for programs.
    """

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        self.message = clean_line(message, MAX_CHARS)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the error object in OpenAI's dialect."""
        if self.status >= 500:
            error_type = "server_error"
        else:
            error_type = "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": error_type,
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(param: str, reason: str) -> ApiError:
    """Return the refusal of a field with an invalid value."""
    return ApiError(f"{param} {reason}", param=param, code="invalid_value")


def unsupported(param: str, reason: str) -> ApiError:
    """Return the refusal of a field that the API has and this server does not support."""
    return ApiError(f"{param} {reason}", param=param, code="unsupported_parameter")


def unavailable(message: str, code: str) -> ApiError:
    """Return the refusal of a request that may succeed later."""
    return ApiError(message, 503, code=code)


def without_trace(error: E) -> E:
    """Return the exception without its traceback, cause and context.

    A traceback holds all frames that the exception has passed, and so the text of the request. If a
    frame holds the exception as well, they form a cycle that stays until the garbage collector
    runs.
    """
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error

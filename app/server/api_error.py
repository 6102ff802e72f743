"""Refusals of the API: an HTTP status and the error object that its clients know."""

from __future__ import annotations

from typing import Any, TypeVar

from app.text.clean_text import clean_line

MOST_CHARS = 300
E = TypeVar("E", bound=BaseException)


class ApiError(Exception):
    """The reason why a request is refused or not answered.

    Args:
        message: one line; cleaned and bounded here.
        status: of HTTP.
        param: the field, such as ``messages[2].content``.
        code: a word for programs.
    """

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        self.message = clean_line(message, MOST_CHARS)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the object that is sent."""
        if self.status >= 500:
            kind = "server_error"
        else:
            kind = "invalid_request_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        }


def invalid(param: str, why: str) -> ApiError:
    """Return the refusal of a field whose value cannot be meant."""
    return ApiError(f"{param} {why}", param=param, code="invalid_value")


def unsupported(param: str, why: str) -> ApiError:
    """Return the refusal of something that the API knows and this server does not do."""
    return ApiError(f"{param} {why}", param=param, code="unsupported_parameter")


def unavailable(message: str, code: str) -> ApiError:
    """Return the refusal of what may be possible a little later."""
    return ApiError(message, 503, code=code)


def without_trace(error: E) -> E:
    """Return an exception without its traceback and without the exceptions that led to it.

    A traceback holds every frame that the exception has passed, and a frame holds what was read of
    the request. If the frame holds the exception as well, both stay until the garbage collector
    comes by.
    """
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error

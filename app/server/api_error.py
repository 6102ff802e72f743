"""Errors of the API: an HTTP status, and the error object that clients know."""

from __future__ import annotations

from typing import Any, TypeVar

from app.text.clean_text import clean_line

MAX_CHARS = 300
"""Limit on the characters of a message."""
CONTEXT_EXCEEDED = "context_length_exceeded"
"""Code of a prompt that is too long."""
ANTHROPIC_OVERLOADED = 529
"""Status in Anthropic's API for a request that may succeed later."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""Types of errors in Anthropic's API, by their status here."""
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

    def anthropic_body(self) -> dict[str, Any]:
        """Return the error object in Anthropic's dialect."""
        message = self.message
        if self.code == CONTEXT_EXCEEDED:
            # Programs look for these words, and then shorten the conversation.
            message = f"prompt is too long: {message}"
        default_type = "api_error" if self.status >= 500 else "invalid_request_error"
        error_type = _ANTHROPIC_TYPES.get(self.status, default_type)
        return {"type": "error", "error": {"type": error_type, "message": message}}


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

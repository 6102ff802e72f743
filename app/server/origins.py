"""Pages in browsers that may use the server: those that the user has named (CORS), and no other."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers

_METHODS = "GET, POST"
_REQUEST_HEADERS = "authorization, content-type"
MOST_HEADER_CHARS = 2000
"""Limit on the names of headers that a page asks for."""
_KEPT_S = "600"
"""How long a browser remembers what it may do."""


class Origins:
    """The origins that are allowed, each as a browser sends it: ``https://notes.example``."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = {origin.lower() for origin in allowed}

    def allow(self, headers: Headers) -> bool:
        """Whether a request comes from a page that may ask."""
        origins = headers.getlist("origin")
        return bool(origins) and all(origin.lower() in self._allowed for origin in origins)

    @staticmethod
    def answer(headers: Headers) -> dict[str, str]:
        """Return the headers that let an allowed page read an answer."""
        return {"Access-Control-Allow-Origin": headers["origin"], "Vary": "Origin"}

    @staticmethod
    def permission(headers: Headers) -> dict[str, str] | None:
        """Return what answers a browser that asks before a page's request; None where it does not ask.

        It asks without the key, and whether a page of the network may reach this machine at all.
        """
        if "access-control-request-method" not in headers:
            return None
        wanted = headers.get("access-control-request-headers", _REQUEST_HEADERS)[:MOST_HEADER_CHARS]
        permission = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": _KEPT_S,
        }
        if headers.get("access-control-request-private-network") == "true":
            permission["Access-Control-Allow-Private-Network"] = "true"
        return permission

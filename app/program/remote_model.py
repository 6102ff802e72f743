"""Models computed by another program, here or on another machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from app.text.record import record

_SAFE = re.compile(r"[!-~]{1,500}")
_ENDPOINTS = ("/chat/completions", "/completions", "/models")
"""Ends of addresses as servers document them."""
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def is_private(address: SplitResult) -> bool:
    """Whether text sent to an address cannot be read on the way."""
    return address.scheme == "https" or address.hostname in THIS_MACHINE


@record
class RemoteModel:
    """A model of a server, used in place of a model's path."""

    server: str
    """Address of the API, as ``server_address`` returns it."""
    name: str = ""
    """Name of the model; "" for the server's first model."""

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return urlsplit(self.server).netloc

    @property
    def stem(self) -> str:
        """Name to show before the model is open."""
        return self.name or self.host

    @property
    def is_private(self) -> bool:
        """Whether text sent to the server cannot be read on the way."""
        return is_private(urlsplit(self.server))

    def __str__(self) -> str:
        """Return the text that takes the place of a path."""
        return f"{self.server}#{self.name}"


ModelPlace = Path | RemoteModel
"""Path of a model file, or a model of a server."""


def is_address(text: str) -> bool:
    """Whether a text is an http or https address without a password."""
    try:
        address = urlsplit(text)
        address.port  # noqa: B018 - raises ValueError for an unsound port
    except ValueError:
        return False
    is_plain = address.username is None and not address.fragment and bool(address.hostname)
    return address.scheme in ("http", "https") and is_plain and _SAFE.fullmatch(text) is not None


def server_address(text: str) -> str:
    """Return the address of an API, by default at ``/v1``.

    Raises ValueError: it is not http or https, or has a password or query.
    """
    if not is_address(text) or "?" in text:
        raise ValueError(text)
    address = urlsplit(text)
    path = address.path.rstrip("/")
    for end in _ENDPOINTS:
        path = path.removesuffix(end)
    return f"{address.scheme}://{address.netloc}{path or '/v1'}"


def is_remote(model: object) -> bool:
    """Whether a model, or its text, is of a server."""
    return str(model).startswith(("http://", "https://"))

"""A model that another program computes, here or on another machine: the address of its server, and
its name there."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from app.text.record import record

_SAFE = re.compile(r"[!-~]{1,500}")
_ENDPOINTS = ("/chat/completions", "/completions", "/models")
"""Ends of addresses as documents of servers show them."""
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def is_private(parts: SplitResult) -> bool:
    """Whether no one on the way to an address can read what is sent."""
    return parts.scheme == "https" or parts.hostname in THIS_MACHINE


@record
class RemoteModel:
    """Takes the place of a model's path."""

    server: str
    """Address of its API, as ``server_address`` returns it."""
    name: str = ""
    """"" is the first that the server names."""

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.server).netloc

    @property
    def stem(self) -> str:
        """Its name before it is open."""
        return self.name or self.host

    @property
    def is_private(self) -> bool:
        """Whether no one on the way can read what is sent."""
        return is_private(urlsplit(self.server))

    def __str__(self) -> str:
        """Write it where a path would be."""
        return f"{self.server}#{self.name}"


ModelPlace = Path | RemoteModel
"""Where a model is."""


def is_address(text: str) -> bool:
    """Whether a text is an address of http or https, without a password."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises where the port is none
    except ValueError:
        return False
    is_plain = parts.username is None and not parts.fragment and bool(parts.hostname)
    return parts.scheme in ("http", "https") and is_plain and _SAFE.fullmatch(text) is not None


def server_address(text: str) -> str:
    """Return an API's address, by default at ``/v1``.

    Raises ValueError: not of HTTP, or with password or query.
    """
    if not is_address(text) or "?" in text:
        raise ValueError(text)
    parts = urlsplit(text)
    path = parts.path.rstrip("/")
    for end in _ENDPOINTS:
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def is_remote(place: object) -> bool:
    """Whether a model's place, or what is written of it, is a server's."""
    return str(place).startswith(("http://", "https://"))

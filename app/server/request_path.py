"""The path that a request means: clients put it together from a base address in more than one way."""

from __future__ import annotations

import re

API = ("/chat/completions", "/completions", "/responses", "/embeddings", "/rerank", "/models")
"""Paths that begin with /v1, which a base address may lack, or have twice."""
_WHOLE_ADDRESS = re.compile(r"https?://([^/]*)(/.*|)", re.IGNORECASE | re.DOTALL)
_SLASHES = re.compile(r"/+")
_VERSIONS = re.compile(r"(/v1)+(?=/|$)")


def host_and_path(target: str) -> tuple[str | None, str]:
    """Return the host of a request that names its whole address, as proxies' clients do, else None; and the path."""
    found = _WHOLE_ADDRESS.fullmatch(target)
    return (found[1], found[2] or "/") if found else (None, target)


def meant_path(path: str) -> str:
    """Return a path of the server for the ways in which clients write it; others as they are."""
    plain = _SLASHES.sub("/", path)
    plain = plain[:-1] if len(plain) > 1 and plain.endswith("/") else plain
    rest = _VERSIONS.sub("", plain, count=1) if plain.startswith("/v1") else plain
    if any(rest == one or rest.startswith(f"{one}/") for one in API):
        return f"/v1{rest}"
    return rest or plain

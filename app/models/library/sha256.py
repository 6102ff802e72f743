"""Hash of a model file, and the hash in its name in a store."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from app.program.refusals import Refusal

_CHUNK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


def sha256_of(path: Path, progress: Callable[[int, int, float], None] | None = None) -> str:
    """Return the hash of a file.

    Args:
        progress: called with bytes done, total bytes and seconds left after every megabyte.
    """
    digest = hashlib.sha256()
    started_s = time.monotonic()
    with path.open("rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size
        done = 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total, (time.monotonic() - started_s) * (total - done) / done)
    return digest.hexdigest()


def stated_sha256(path: Path) -> str:
    """Return the hash by which Ollama's store or Hugging Face's cache names a file; ""
    elsewhere.
    """
    real = Path(os.path.realpath(path))
    if real.parent.name != "blobs":
        return ""
    name = real.name.removeprefix("sha256-")
    if _DIGEST.fullmatch(name):
        return name
    return ""


def given_sha256(text: str, command: str) -> str:
    """Return the hash of ``--sha256``; "" for none. Raises Refusal: it is not a hash."""
    sha256 = text.lower().removeprefix("sha256:")
    if sha256 and not _DIGEST.fullmatch(sha256):
        raise Refusal(f"jalopy {command}: --sha256 is not a hash of 64 hexadecimal digits")
    return sha256

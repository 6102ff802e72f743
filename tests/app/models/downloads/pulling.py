"""Helpers for tests of ``jalopy pull``: a small model, a client without pauses, and downloads."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.cli.pull import pull as run_pull
from app.models.downloads import hub
from app.program.settings import built_in_settings
from app.program.web import Web
from app.program.web_refusals import DownloadError
from tests.engine import tiny_gguf

REPOSITORY = "someone/Tiny-GGUF"
NAME = "tiny-Q8_0.gguf"
GIB = 1 << 30


@cache
def content(quant: str = "Q8_0", **arguments: Any) -> bytes:
    """Return the bytes of a model of some hundred kilobytes."""
    return tiny_gguf.build(quant=quant, n_layers=6, **arguments)


def client(pauses: list[float] | None = None, **options: Any) -> Web:
    return hub.connect(pause=(pauses if pauses is not None else []).append, **options)


def get(target: Path, request: str = REPOSITORY, web: Web | None = None, **options: Any) -> int:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    return run_pull(settings, request, **options, web=web or client())


def refusal(
    target: Path, request: str = REPOSITORY, web: Web | None = None, **options: Any
) -> DownloadError:
    """Expect a refused download with one short clean line and no model file; return the error."""
    with pytest.raises(DownloadError) as caught:
        get(target, request, web, **options)
    line = str(caught.value)
    assert line.isprintable()
    assert len(f"jalopy: {line}") <= 300
    assert not list(target.glob("*.gguf")) if target.exists() else True
    return caught.value


def remaining_files(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir()) if target.exists() else []

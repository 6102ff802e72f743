"""Shared by tests of ``jalopy pull``: a small model, a client that waits for nothing, a pull and a
refused one."""

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
    """A model of some hundred kilobytes."""
    return tiny_gguf.build(quant=quant, n_layers=6, **arguments)


def client(pauses: list[float] | None = None, **options: Any) -> Web:
    return hub.connect(pause=(pauses if pauses is not None else []).append, **options)


def get(target: Path, what: str = REPOSITORY, web: Web | None = None, **options: Any) -> int:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    return run_pull(settings, what, **options, web=web or client())


def refusal(
    target: Path, what: str = REPOSITORY, web: Web | None = None, **options: Any
) -> DownloadError:
    """Expect one short clean line and no file of the model's name."""
    with pytest.raises(DownloadError) as caught:
        get(target, what, web, **options)
    line = str(caught.value)
    assert line.isprintable()
    assert len(f"jalopy: {line}") <= 300
    assert not list(target.glob("*.gguf")) if target.exists() else True
    return caught.value


def left_over(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir()) if target.exists() else []

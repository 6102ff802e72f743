"""``jalopy embed``: a line for each text from arguments or standard input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from app.cli.embed import embed
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from tests.engine.architectures import encoders

pytestmark = pytest.mark.slow


def test_each_text_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(encoders.bert().write(tmp_path / "m.gguf"))
    texts = ["a cat", "the sea"]
    assert embed(built_in_settings(), path, texts) == 0
    numbers = np.loadtxt(io.StringIO(capsys.readouterr().out))
    assert np.allclose((numbers**2).sum(axis=1), 1, atol=1e-4)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a cat\n\nthe sea")))
    assert embed(built_in_settings(), path, as_json=True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == texts
    assert np.allclose([row["embedding"] for row in rows], numbers, atol=1e-6)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a" * ((1 << 20) + 1))))
    with pytest.raises(Refusal, match="a line is longer than"):
        embed(built_in_settings(), path)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(Refusal, match="there is no text"):
        embed(built_in_settings(), path)

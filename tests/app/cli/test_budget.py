"""``jalopy quantize --budget``: size of the file, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.arguments import parse
from app.cli.dispatch import guard, run_command
from app.program import exit_codes
from engine import read_gguf
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


def run(*words: str) -> int:
    return guard(lambda: run_command(parse(["quantize", *words, "--threads", "1"])))


def test_the_file_is_within_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny_gguf.model(quant="F32", dim=128).write(tmp_path / "m.gguf")
    out = tmp_path / "small.gguf"
    most_bytes = source.stat().st_size // 4
    assert run(str(source), str(out), "--budget", str(most_bytes)) == exit_codes.OK
    assert 0.8 * most_bytes < out.stat().st_size <= most_bytes
    assert "(was " in capsys.readouterr().out
    gguf = read_gguf(out)
    assert len({tensor.type_name for tensor in gguf.tensors.values()}) > 2
    assert gguf.metadata["quantize.imatrix.file"] == "jalopy's manual"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--budget", "1K"],
            "jalopy quantize: --budget: 1.0K is too small, the smallest types take ",
        ),
        ([], "jalopy quantize: give --type or --budget (types: "),
    ],
)
def test_an_impossible_budget_is_refused_in_one_line(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_gguf.model(quant="F32", dim=128).write(tmp_path / "m.gguf")
    assert run(str(source), str(tmp_path / "o.gguf"), *words) != exit_codes.OK
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(why)
    assert not (tmp_path / "o.gguf").exists()

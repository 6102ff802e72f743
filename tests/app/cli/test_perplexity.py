"""``jalopy perplexity``: text output, JSON output, and refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from app.cli.arguments import parse
from app.cli.chunks import ChunkReading
from app.cli.dispatch import guard, run_command
from app.cli.perplexity import PerplexityOptions, perplexity
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine.measure import perplexity as measure
from engine.session import Session
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("perplexity")
    for seed in (1, 2):
        tiny_gguf.model("llama", "F32", dim=128, seed=seed).write(folder / f"{seed}.gguf")
    tiny_gguf.write(folder / "other.gguf", "qwen2")
    (folder / "text.txt").write_text("The cat sat on the mat, and the dog lay near the door. " * 4)
    (folder / "short.txt").write_text("Hi")
    return folder


def run(folder: Path, **overrides: Any) -> int:
    options = {
        "model": str(folder / "1.gguf"),
        "file": str(folder / "text.txt"),
        "n_chunk": 32,
        **overrides,
    }
    return perplexity(PerplexityOptions(**options), built_in_settings())


def test_the_line_has_perplexity_error_and_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder) == exit_codes.OK
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("perplexity ")
    assert " ± " in line
    assert " chunks of 32; " in line


@pytest.mark.smoke
def test_another_model_is_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, against=str(folder / "2.gguf")) == exit_codes.OK
    _, reference, divergence, agreement = capsys.readouterr().out.splitlines()
    assert reference.startswith(f"{folder / '2.gguf'}: perplexity ")
    assert divergence.startswith("KL divergence from it: ")
    assert float(divergence.split()[4]) > 0.001
    assert agreement.startswith("same likeliest token ")


def test_json_is_one_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, kv="q8_0", as_json=True) == exit_codes.OK
    report = json.loads(capsys.readouterr().out)
    assert report["kv"] == "q8_0"
    assert report["chunks"] == report["chunks_in_all"] > 1
    assert report["n_tokens"] == 15 * report["chunks"]
    assert 0 < report["divergence"]["value"] < 0.01
    assert report["perplexity"]["value"] == pytest.approx(report["reference"]["value"], rel=0.01)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"file": "short.txt"},
            r"short\.txt: has \d tokens?, less than one chunk of 32 \(give a longer text",
        ),
        (
            {"n_chunk": 4096},
            r"a chunk of 4,096 tokens is longer than the model\'s context of \d+ \(give a smaller --ctx\)",
        ),
        ({"against": "other.gguf"}, "have different vocabularies"),
        ({"file": "nowhere.txt"}, r"nowhere\.txt: No such file"),
    ],
)
def test_unusable_texts_and_models_are_refused_in_one_line(
    folder: Path, options: dict[str, Any], why: str
) -> None:
    arguments = {
        key: str(folder / value) if isinstance(value, str) else value
        for key, value in options.items()
    }
    with pytest.raises(Refusal, match=why) as refused:
        run(folder, **arguments)
    assert "\n" not in str(refused.value)


def test_ctrl_c_prints_the_result_so_far(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the second chunk is read ends the reading."""
    score = measure.score
    cancel = Session.cancel
    sessions = []
    cancelled = threading.Event()

    def interrupted(session: Session, ids: Any, first: int = 0) -> Any:
        sessions.append(session)
        for rows in score(session, ids, first):
            if len(sessions) == 2 and not cancelled.is_set():
                # Python hands it to the main thread, which waits
                os.kill(os.getpid(), signal.SIGINT)
                assert cancelled.wait(60)
            yield rows

    monkeypatch.setattr(measure, "score", interrupted)
    monkeypatch.setattr(Session, "cancel", lambda self: (cancel(self), cancelled.set()))
    assert run(folder) == exit_codes.INTERRUPTED
    assert re.match(r"stopped after 2 of \d chunks: perplexity ", capsys.readouterr().out)
    with pytest.raises(KeyboardInterrupt):
        ChunkReading[Any](lambda: 0.0)._stop()


def test_the_command_line_runs_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "perplexity",
        str(folder / "1.gguf"),
        str(folder / "text.txt"),
        "--ctx",
        "32",
        "--threads",
        "1",
    ]
    assert guard(lambda: run_command(parse(words))) == exit_codes.OK
    assert capsys.readouterr().out.startswith("perplexity ")
    for wrong in (["--kv", "q9"], ["--ctx", "4"], ["--against", "x", "--kv", "f16"]):
        with pytest.raises(SystemExit):
            parse([*words[:3], *wrong])

"""``jalopy perplexity``: lines for people, one object for scripts, and what is refused."""

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
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("perplexity")
    for seed in (1, 2):
        tiny_gguf.model("llama", "F32", dim=128, seed=seed).write(found / f"{seed}.gguf")
    tiny_gguf.write(found / "other.gguf", "qwen2")
    (found / "text.txt").write_text("The cat sat on the mat, and the dog lay near the door. " * 4)
    (found / "short.txt").write_text("Hi")
    return found


def run(place: Path, **more: Any) -> int:
    given = {"model": str(place / "1.gguf"), "file": str(place / "text.txt"), "n_chunk": 32, **more}
    return perplexity(PerplexityOptions(**given), built_in_settings())


def test_a_line_says_perplexity_error_and_how_many_tokens(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place) == exit_codes.OK
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("perplexity ")
    assert " ± " in line
    assert " chunks of 32; " in line


def test_another_model_is_compared_with(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, against=str(place / "2.gguf")) == exit_codes.OK
    _, other, divergence, same = capsys.readouterr().out.splitlines()
    assert other.startswith(f"{place / '2.gguf'}: perplexity ")
    assert divergence.startswith("KL divergence from it: ")
    assert float(divergence.split()[4]) > 0.001
    assert same.startswith("same likeliest token ")


def test_scripts_get_one_object(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, kv="q8_0", as_json=True) == exit_codes.OK
    told = json.loads(capsys.readouterr().out)
    assert told["kv"] == "q8_0"
    assert told["chunks"] == told["chunks_in_all"] > 1
    assert told["n_tokens"] == 15 * told["chunks"]
    assert 0 < told["divergence"]["value"] < 0.01
    assert told["perplexity"]["value"] == pytest.approx(told["reference"]["value"], rel=0.01)


@pytest.mark.parametrize(
    ("given", "why"),
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
def test_what_cannot_be_measured_is_refused_in_one_line(
    place: Path, given: dict[str, Any], why: str
) -> None:
    named = {
        key: str(place / value) if isinstance(value, str) else value for key, value in given.items()
    }
    with pytest.raises(Refusal, match=why) as refused:
        run(place, **named)
    assert "\n" not in str(refused.value)


def test_ctrl_c_prints_what_is_known(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes while the second chunk is read, and ends that."""
    score = measure.score
    cancel = Session.cancel
    made = []
    cancelled = threading.Event()

    def interrupted(session: Session, ids: Any, first: int = 0) -> Any:
        made.append(session)
        for rows in score(session, ids, first):
            if len(made) == 2 and not cancelled.is_set():
                # Python hands it to the main thread, which waits
                os.kill(os.getpid(), signal.SIGINT)
                assert cancelled.wait(60)
            yield rows

    monkeypatch.setattr(measure, "score", interrupted)
    monkeypatch.setattr(Session, "cancel", lambda self: (cancel(self), cancelled.set()))
    assert run(place) == exit_codes.INTERRUPTED
    assert re.match(r"stopped after 2 of \d chunks: perplexity ", capsys.readouterr().out)
    with pytest.raises(KeyboardInterrupt):
        ChunkReading[Any](lambda: 0.0)._stop()


def test_the_command_line_leads_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "perplexity",
        str(place / "1.gguf"),
        str(place / "text.txt"),
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

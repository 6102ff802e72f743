"""Documents read for a command: progress from the first second on, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from app.cli import output, reading
from app.cli.output import ProgressLine
from app.cli.read import read
from app.documents.read import ReadingProgress
from app.program import exit_codes
from app.program.settings import built_in_settings


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    return [str(tmp_path)]


def test_a_terminal_shows_each_file_at_once(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "_MIN_INTERVAL_S", 0.0)
    documents = reading.read_with_progress(files).documents
    assert [document.text for document in documents] == ["a", "b"]
    err = capsys.readouterr().err
    assert "reading documents: 1 of 2, a.txt" in err
    assert "reading documents: 2 of 2, b.txt" in err
    assert err.endswith("\r\x1b[K")


def test_a_pipe_gets_a_line_after_a_second_and_rarely_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moments_s = iter([5.0, 5.5, 6.0, 7.0, 21.1])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(moments_s))
    progress = ProgressLine()
    for n_read in range(5):
        progress.follow_documents(ReadingProgress(n_read, 9, Path("a.txt")))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"jalopy: reading documents: {n} of 9, a.txt" for n in (3, 5)]


def test_ctrl_c_keeps_the_documents_read_so_far(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(progress: ProgressLine, step: ReadingProgress) -> None:
        if step.n_read == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "follow_documents", press)
    result = reading.read_with_progress(files)
    assert [document.text for document in result.documents] == ["a"]
    assert "left out (stopped)" in result.troubles[0]
    assert read(built_in_settings(), "m.gguf", files) == exit_codes.INTERRUPTED
    assert "left out (stopped)" in capsys.readouterr().err

import os
import pty
import sys
from pathlib import Path

import pytest

from app.cli.help import help as help_command
from app.cli.help import pager_command
from app.program.manual import topics
from app.program.refusals import Refusal


def test_help_shows_the_manual_and_names_the_nearest_topic(capsys):
    assert help_command() == 0
    listed = capsys.readouterr().out
    assert all(topic in listed for topic in topics())
    help_command("thinking")
    assert "/think off" in capsys.readouterr().out
    with pytest.raises(Refusal, match=r"no topic 'thredas' \(nearest: threads\)"):
        help_command("thredas")


def test_a_command_without_a_page_shows_its_options(capsys):
    with pytest.raises(SystemExit) as end:
        help_command("pull")
    assert end.value.code == 0
    assert "usage: jalopy pull" in capsys.readouterr().out


def test_a_pipe_gets_plain_text(capsys):
    help_command("serve")
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("environment", "command"),
    [({"PAGER": "most -s"}, ["most", "-s"]), ({"PAGER": "cat"}, ["cat"])],
)
def test_the_users_pager_is_used(environment: dict[str, str], command: list[str]):
    assert pager_command(environment) == command


@pytest.mark.parametrize(("lines", "is_paged"), [(10, True), (1000, False)])
def test_a_long_page_goes_through_the_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, is_paged: bool
):
    paged_file = tmp_path / "paged"
    monkeypatch.setenv("PAGER", f"sh -c 'cat > {paged_file}'")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", str(lines))
    _, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert help_command("thinking") == 0
    assert paged_file.exists() == is_paged
    if is_paged:
        assert "\x1b[1mThinking: how much" in paged_file.read_text(encoding="utf-8")


def test_a_pager_that_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAGER", "/nonexistent/pager")
    monkeypatch.setenv("LINES", "10")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert help_command("thinking") == 0
    assert b"/think off" in os.read(controller, 4096)

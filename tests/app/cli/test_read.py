"""``jalopy read``: documents read in advance, and the chat that continues with them."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import line_mode
from app.cli.read import read
from app.conversations.store import Store
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["It", " hums."]]))


def test_documents_are_read_in_order_before_the_question(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("b.md", "a.md"):
        (tmp_path / name).write_text(f"the words of {name}")
    settings = built_in_settings()
    files = [str(tmp_path / name) for name in ("b.md", "absent", "a.md")]
    assert read(settings, "m.gguf", files, script.clock) == exit_codes.OK
    err = capsys.readouterr().err
    assert "absent: No such file" in err
    assert "2 files: about 32 tokens" in err
    assert "open conversation 1 or /read the same files in a new one" in err
    session = script.opened[-1].sessions[0]
    assert sum(session.fed_counts) == session.length > 0
    saved = Store().read("000001")
    assert saved.title == "read: a.md, b.md"
    [message] = saved.conversation.messages
    assert message.text.startswith("a.md:\n```\nthe words of a.md\n```\n b.md:\n```")
    assert message.folded.replace("\u00a0", " ").startswith("[file 1: a.md, ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("what hums?\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert line_mode.chat("m.gguf", settings, script.clock) == exit_codes.OK
    question, reply = Store().read("000001").conversation.messages
    assert question.text == f"{message.text}\n\nwhat hums?"
    assert reply.text == "It hums."


def test_only_changed_files_start_another_conversation(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.md"
    settings = built_in_settings()
    file.write_text("one text")
    arguments = "m.gguf", [str(file)]
    for _ in range(2):
        assert read(settings, *arguments, script.clock) == exit_codes.OK
    assert "continuing conversation 1, which has the same files" in capsys.readouterr().err
    assert Store().ids() == ["000001"]
    [message] = Store().read("000001").conversation.messages
    assert message.text == "a.md:\n```\none text\n```"
    # a refusal costs nothing that was there before
    with pytest.raises(Refusal, match="the context holds"):
        read(replace(settings, context_size=8), *arguments, script.clock)
    assert Store().ids() == ["000001"]
    file.write_text("another text")
    assert read(settings, *arguments, script.clock) == exit_codes.OK
    assert Store().ids() == ["000001", "000002"]


def test_unreadable_documents_are_refused_in_one_line(script: Script, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("word " * 2000)
    settings = built_in_settings()
    with pytest.raises(Refusal, match="there is no document to read"):
        read(settings, "m.gguf", [str(tmp_path / "absent")], script.clock)
    with pytest.raises(Refusal, match="keep_kv_states"):
        read(replace(settings, keep_kv_states="off"), "m.gguf", [str(tmp_path)], script.clock)
    with pytest.raises(Refusal, match="about 2,010 tokens, but the context holds 512"):
        read(settings, "m.gguf", [str(tmp_path / "a.md")], script.clock)
    assert Store().ids() == []

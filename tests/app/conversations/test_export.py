import errno
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from app.conversations import export
from app.conversations.conversation import Conversation, Ending, ReplyFigures
from app.program.refusals import Refusal

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def conversation() -> Conversation:
    talk = Conversation("Be brief.")
    talk.add_user("why?")
    talk.add_reply("because", Ending.STOPPED, ReplyFigures(7, 1.5, 2.5, 4, 0))
    return talk


def test_front_matter_names_model_time_and_tokens():
    text = export.to_markdown(conversation(), "tiny Q8_0", NOW)
    assert text.startswith(
        '---\nprogram: "jalopy"\nmodel: "tiny Q8_0"\nsaved: "2026-01-02T03:04:05+00:00"\n'
        "replies: 1\ntokens: 7\n---\n"
    )


def test_turns_follow_in_order_with_their_figures():
    text = export.to_markdown(conversation(), "", NOW)
    excerpts = [
        "## System\n\nBe brief.",
        "## You\n\nwhy?",
        "## Model\n\nbecause",
        " tok/s · first word after 1.5 s",
    ]
    positions = [text.index(excerpt) for excerpt in excerpts]
    assert positions == sorted(positions)
    assert re.search(r"· stopped · \d+ read", text)


def test_a_name_cannot_break_out_of_the_front_matter():
    text = export.to_markdown(Conversation(), 'x"\n---\nevil: 1', NOW)
    assert 'model: "x\\"\\n---\\nevil: 1"' in text


def test_without_a_path_the_file_is_named_after_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert export.choose_path("", NOW) == tmp_path / "jalopy-20260102-030405.md"
    assert export.choose_path(str(tmp_path), NOW) == tmp_path / "jalopy-20260102-030405.md"
    assert export.choose_path("talk.md", NOW) == Path("talk.md")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A walk by the sea", "A-walk-by-the-sea.md"),
        ("../../etc/passwd: \x1b[31m?", "etc-passwd-31m.md"),
        ("\u6d77 \U0001f600", "\u6d77.md"),
        ("...", "jalopy-20260102-030405.md"),
        ("long " * 40, "long-" * 9 + "lon.md"),
    ],
)
def test_the_title_names_the_file(tmp_path: Path, title: str, name: str):
    assert export.choose_path(str(tmp_path), NOW, title) == tmp_path / name


def test_a_name_in_use_gets_the_time(tmp_path: Path):
    (tmp_path / "Sea.md").touch()
    path = export.choose_path(str(tmp_path), NOW, "Sea")
    assert path == tmp_path / "Sea-20260102-030405.md"


def test_a_file_is_private_and_never_written_over(tmp_path: Path):
    path = tmp_path / "talk.md"
    export.write_new(path, "one \ud800")
    assert path.read_text(encoding="utf-8") == "one ?"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        export.write_new(path, "two")


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def open_on_full_disk(*arguments: Any, **options: Any) -> Any:
        file = fdopen(*arguments, **options)
        file.write = fail
        return file

    def fail(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "talk.md"
    fdopen = os.fdopen
    monkeypatch.setattr(os, "fdopen", open_on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        export.write_new(path, "one")
    assert not path.exists()


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        ("absent/talk.md", "there is no folder absent"),
        ("file/talk.md", "Not a directory"),
        ("nul\0.md", "embedded null byte"),
    ],
)
def test_why_a_conversation_is_not_saved(
    requested: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    conversation = Conversation()
    conversation.add_user("hello")
    with pytest.raises(Refusal, match=f"^not saved: {reason}$"):
        export.save_as(requested, conversation, "model")


def test_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "link.md").symlink_to(tmp_path / "elsewhere.md")
    with pytest.raises(FileExistsError):
        export.write_new(tmp_path / "link.md", "text")
    assert not (tmp_path / "elsewhere.md").exists()


def test_export_works_without_the_optional_open_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(os, "O_NOFOLLOW")
    monkeypatch.delattr(os, "O_CLOEXEC")
    export.write_new(tmp_path / "talk.md", "text")
    assert (tmp_path / "talk.md").read_text() == "text"

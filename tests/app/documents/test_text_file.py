import io
import os
from pathlib import Path

import pytest

from app.documents.text_file import MAX_SOURCE_BYTES, attached, bounded, read_text_file
from app.program.refusals import Refusal
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"one\r\ntwo\n", "one\ntwo"),
        ("\ufeffna\u00efve".encode(), "na\u00efve"),
        ("caf\u00e9".encode("latin-1"), "caf\u00e9"),
        ("wide".encode("utf-16"), "wide"),
        (b"red \x1b[31m end", "red  end"),
    ],
)
def test_text_is_decoded_and_cleaned(tmp_path: Path, raw: bytes, text: str) -> None:
    (tmp_path / "f").write_bytes(raw)
    assert read_text_file(tmp_path / "f") == text


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"a\0b", "is not a text file"),
        (b" \n", "is empty"),
        (b"x" * (MAX_SOURCE_BYTES + 1), "is larger than 64 MiB"),
    ],
)
def test_binary_or_oversized_files_are_refused(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(Refusal, match=reason):
        read_text_file(tmp_path / "f")


def test_only_regular_files_are_read_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("pipe", "is not a file"),
        ("absent", "No such file"),
        (".", "[Ii]s (not a file|a directory)"),
    ):
        with pytest.raises(Refusal, match=reason):
            read_text_file(tmp_path / name)
    with pytest.raises(Refusal, match="is not a path"):
        read_text_file(Path("a\0b"))


def test_fences_are_longer_than_any_in_the_text() -> None:
    assert attached("a.md", "```\nx\n```") == "a.md:\n````\n```\nx\n```\n````\n"


async def test_a_file_is_attached_as_a_chip_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.md").write_text("word\n" * 400)
    monkeypatch.setattr("app.backend.local.backend.tokens_ratio", lambda encode, vocab_size: 3.0)
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n", encoding="utf-8")
    async with chatting(Script(n_ctx=2048)) as driver:
        await driver.say(f"/read {tmp_path / 'absent'}")
        await driver.note("absent: No such file or directory (name a text file)")
        await driver.say("/read")
        await driver.note("usage: /read file ...")
        await driver.say(f"/read {path}")
        await driver.until(
            lambda: "notes.txt, 17 B, 1 line]" in driver.prompt.text.replace("\u00a0", " ")
        )
        driver.prompt.insert("What is in it?")
        await driver.pilot.press("enter")
        await driver.last_reply()
        message = driver.chat.core.chat_session.conversation.messages[0]
        assert message.text == "notes.txt:\n```\nremember the milk\n```\n What is in it?"
        await driver.hides("remember the milk")
        await driver.shows("notes.txt")
        await driver.say("/edit")
        await driver.until(lambda: "notes.txt, 17 B" in driver.prompt.text.replace("\u00a0", " "))
        assert "milk" not in driver.prompt.text
        # The tokens are counted with the model's vocabulary.
        await driver.say(f"/read {tmp_path / 'large.md'}")
        assert "of 2,048 tokens)" in await driver.note("large.md is too long for this model (2,4")


async def test_files_named_in_a_message_are_completed_and_attached(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one note.md").write_text("buy milk")
    (tmp_path / "two.md").write_text("buy bread")
    os.symlink("loop", tmp_path / "loop")
    folder = tmp_path / "manuals"
    folder.mkdir()
    for number in range(3):
        lines = [f"line {line} of this file is about nothing" for line in range(900)]
        lines[400] = f"the fan number {number} hums"
        (folder / f"{number}.md").write_text("\n".join(lines))
    async with chatting(Script(n_ctx=8192)) as driver:
        driver.prompt.insert("Compare ")
        await driver.type("@on")
        await driver.until(lambda: driver.prompt.completions)
        await driver.pilot.press("tab")
        await driver.until(
            lambda: driver.prompt.draft.text.startswith("one note.md:\n```\nbuy milk\n```\n")
        )
        await driver.type("with @two.md, not @no one")
        await driver.pilot.press("enter")
        await driver.last_reply()
        text = driver.chat.core.chat_session.conversation.messages[0].text
        assert text == (
            "one note.md:\n```\nbuy milk\n```\n two.md:\n```\nbuy bread\n```\n"
            " Compare one note.md with @two.md, not @no one"
        )
        # Only passages are sent from a large folder.
        await driver.say(f"/read {folder}")
        await driver.note("3 files are too long for this model")
        assert driver.prompt.text == ""
        await driver.ask("Which fan hums?")
        question, reply = driver.chat.core.chat_session.conversation.messages[2:]
        assert question.text.endswith(" Which fan hums?")
        assert all(f"the fan number {number} hums" in question.text for number in range(3))
        assert "passages of 3 files" in question.folded.replace("\u00a0", " ")
        assert len(reply.sources) >= 3
        await driver.shows("from 0.md lines ")


def test_a_file_that_would_block_is_refused_in_one_line() -> None:
    class Empty(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> None:
            return None  # as a non-blocking file does for EAGAIN

    with pytest.raises(Refusal, match="kmsg: has nothing to read now"):
        bounded(io.BufferedReader(Empty()), 100, "kmsg")

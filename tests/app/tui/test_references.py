"""A file goes with a message where its name was typed or completed after an @; pasted text reads
none."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Paste

from app.documents.read import Follow, ReadDocuments, ReadingProgress, split_wanted
from app.tui.chat import attachments
from app.tui.chat.draft import Draft, typed_references
from app.tui.chat.history import parse_drafts, write_draft
from app.tui.screens.question import CALM_S, SendFilesScreen
from app.tui.widgets.prompt import Prompt
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes", "secret", "two words", "x"):
        (tmp_path / name).write_text(f"words of {name}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "inner").write_text("words of inner")


async def paste(driver: Driver, text: str) -> None:
    before = driver.prompt.text
    driver.prompt.post_message(Paste(text))
    await driver.until(lambda: driver.prompt.text != before, "the paste")


async def sent(driver: Driver) -> str:
    n_before = len(driver.chat.core.chat_session.conversation.messages)
    await driver.pilot.press("enter")
    await driver.until(
        lambda: len(driver.chat.core.chat_session.conversation.messages) > n_before, "the message"
    )
    return driver.chat.core.chat_session.conversation.messages[n_before].text


async def test_a_name_that_is_typed_is_read() -> None:
    cases = {
        "@no@notes @secret": "secret",
        '@"two words"': "two words",
        "see @notes, please": "notes",
    }
    async with chatting() as driver:
        driver.prompt.focus()
        for typed, name in cases.items():
            driver.prompt.show_text("")
            await driver.pilot.press(*(("space" if key == " " else key) for key in typed))
            assert driver.prompt.draft.referred[-1].startswith(name)
        assert "words of notes" in await sent(driver)


async def test_a_name_that_is_pasted_is_text() -> None:
    cases = [
        ("", "@secret", ""),
        ("look ", "at @secret, please", ""),
        ("look at ", "@secret", " please"),
        ("", "@secre", "t"),
        ("@", "secret", ""),
        ("@se", "cret", ""),
        ("", "@", "secret"),
        ("", "see\n@secret\nhere", " and there"),
        ("", "@secret\n" * 30, " short"),
        ("@notes ", "@secret", ""),
    ]
    async with chatting() as driver:
        await driver.pilot.press(*"@motess", "backspace", *["left"] * 4, "backspace", "n")
        assert driver.prompt.draft.referred == ["notes"]  # mended while it is typed
        for before, pasted, after in cases:
            driver.prompt.show_text("")
            await driver.type(before)
            await paste(driver, pasted)
            await driver.type(after)
            assert driver.prompt.draft.text == f"{before}{pasted}{after}"
            assert driver.prompt.draft.referred == (["notes"] if "@notes" in before else [])
        said = await sent(driver)
        assert said.startswith("notes:\n```\nwords of notes")
        assert said.endswith("@notes @secret")


async def test_a_pasted_name_that_is_edited_or_recalled_stays_text() -> None:
    async with chatting() as driver:
        await driver.type("@notesabc foo")
        await paste(driver, "@secret")
        for _ in range(2):
            await driver.pilot.press("home", *["delete"] * len("@notesabc foo"))
            assert driver.prompt.text == "@secret"
            assert driver.prompt.draft.referred == []
            await driver.pilot.press("ctrl+z")
        driver.prompt.show_text("")
        await paste(driver, "@secretx")
        await driver.pilot.press("backspace", "backspace", "t")
        assert driver.prompt.text == "@secret"
        assert await sent(driver) == "@secret"
        await driver.last_reply()
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "@secret")
        assert await sent(driver) == "@secret"
        chat_session = driver.chat.core.chat_session
        await driver.until(
            lambda: len(chat_session.conversation.messages) == 4 and not chat_session.is_busy
        )
        await driver.last_reply()
        await driver.type("/edit")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.prompt.text == "@secret", "the message is edited")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.prompt.text == "")
        await driver.last_reply()
        assert not any(
            "words of" in message.text
            for message in driver.chat.core.chat_session.conversation.messages
        )


async def test_what_goes_along_is_named_before_and_paths_completed() -> None:
    async with chatting() as driver:
        await driver.type("see @notes, and")
        await driver.shows("attaches notes (14B)")
        await driver.pilot.press("ctrl+u")
        await driver.hides("attaches")
        await paste(driver, "@secret")
        assert "attaches" not in driver.screen_text()
        driver.prompt.show_text("")
        await driver.type("see @doc")
        await driver.shows("docs/")
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "see @docs/")
        assert driver.prompt.draft.referred == ["docs/"]
        await driver.shows("attaches docs/ (folder)")
        assert "words of inner" in await sent(driver)


def test_a_draft_keeps_what_was_typed_across_starts() -> None:
    draft = Draft("@notes @secret", references=frozenset(("notes", "note")))
    (kept,) = parse_drafts([write_draft(draft)])
    assert kept.referred == ["notes"]
    assert parse_drafts([b'{"shown": "@notes", "folds": {}}'])[0].referred == []
    assert (
        parse_drafts([b'{"shown": "@notes", "folds": {}, "references": [["notes"], 1]}'])[
            0
        ].referred
        == []
    )


def test_text_of_the_external_editor_names_no_new_file() -> None:
    draft = Draft("@notes", references=frozenset(("notes",)))
    assert draft.refold("@notes @secret").referred == ["notes"]


@pytest.mark.parametrize(
    ("before", "after", "key", "new"),
    [
        ("", "@", "@", {""}),
        ("a", "a@", "@", set()),
        ("x @y", "@y", "", set()),
        ("foo@y", "foo @y", " ", set()),
    ],
)
def test_references_begin_with_a_typed_sign(
    before: str, after: str, key: str, new: set[str]
) -> None:
    assert typed_references(frozenset(), before, after, key) == new


async def of_server(driver: Driver) -> None:
    chat_session = driver.chat.core.chat_session
    assert chat_session.model is not None
    chat_session.model = replace(chat_session.model, server="api.example:8000")


async def question(driver: Driver) -> SendFilesScreen:
    await driver.until(lambda: isinstance(driver.app.screen, SendFilesScreen), "the question")
    assert isinstance(driver.app.screen, SendFilesScreen)
    return driver.app.screen


async def test_the_first_file_for_a_server_is_asked_about_once() -> None:
    async with chatting() as driver:
        await of_server(driver)
        await paste(driver, "@secret")
        assert await sent(driver) == "@secret"  # which is no file: no question
        await driver.last_reply()
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.type("@secret")
        await driver.pilot.press("enter")
        await question(driver)
        await driver.shows("Send secret, 15 B, 1 line to api.example:8000?")
        await driver.pilot.press("y")  # too soon: who types answers nothing
        assert await question(driver)
        await driver.pilot.press("escape")
        await driver.note("Not sent: secret, 15 B, 1 line stays on this computer")
        await driver.until(lambda: "secret" in driver.prompt.text, "the draft is back")
        assert len(driver.chat.core.chat_session.conversation.messages) == 2
        await driver.pilot.press("enter")
        await question(driver)
        # drawn: its keys are there
        await driver.shows("Send secret, 15 B, 1 line to api.example:8000?")
        driver.script.clock.advance(CALM_S)
        await driver.pilot.press("y")
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) > 3)
        assert driver.chat.core.chat_session.conversation.messages[2].text.startswith(
            "secret:\n```\nwords of secret"
        )
        assert (
            driver.chat.core.chat_session.conversation.messages[2].text.count("words of secret")
            == 1
        )
        await driver.until(lambda: len(driver.transcript.replies()) == 2, "the reply")
        await driver.last_reply()
        await driver.type("@notes")
        assert "words of notes" in await sent(driver)
        await driver.until(lambda: len(driver.transcript.replies()) == 3, "the next reply")
        await driver.last_reply()
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.say("/new")
        await driver.say("/read notes")
        await driver.until(lambda: "notes" in driver.prompt.text)
        await driver.pilot.press("enter")
        assert await question(driver)


def test_a_prompt_begins_without_references() -> None:
    assert Prompt().draft.references == frozenset()


async def test_a_dropped_file_becomes_a_command_to_confirm(tmp_path: Path) -> None:
    (tmp_path / "a model.gguf").write_bytes(b"GGUF")
    path = tmp_path / "notes"
    stays_text = (
        "notes",
        f"{tmp_path}/none",
        f"see {path}",
        f"{path}\n{tmp_path}/none",
        str(tmp_path),
    )
    async with chatting() as driver:
        for text in stays_text:
            await paste(driver, text)
            assert driver.prompt.text == text
            driver.prompt.clear()
        await driver.type("in ")
        await paste(driver, str(path))
        assert driver.prompt.text == f"in {path}"
        driver.prompt.clear()
        await paste(driver, f"{tmp_path}/a\\ model.gguf")
        assert driver.prompt.text == f"/model {tmp_path}/a model.gguf"
        await driver.pilot.press("ctrl+z")
        await driver.until(
            lambda: driver.prompt.text == f"{tmp_path}/a\\ model.gguf", "the paste as it was"
        )
        for written in ("{}", "'{}'", '"{}"', "file://{}", " {}\n"):
            driver.prompt.clear()
            await paste(driver, written.format(path))
            assert driver.prompt.text == f"/read {path}"
        await driver.pilot.press("enter")
        await driver.until(lambda: "[file" in driver.prompt.text, "the file is attached")
        assert "words of notes" in driver.prompt.draft.text


async def test_a_file_has_one_count_where_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("some words\n" * 600)
    async with chatting(Script(n_ctx=4000)) as driver:
        await driver.say("/read long")
        same = re.compile(r"long: ([\d,]+) tokens .*─ \1 tokens", re.DOTALL)
        await driver.until(lambda: same.search(driver.screen_text()), "one exact count")
        (tmp_path / "more").write_text("other words\n" * 600)
        driver.chat.composer.attach("more")
        await driver.until(
            lambda: re.search(r"─ [23],\d+ tokens", driver.screen_text()), "both are counted"
        )
        assert "more: about" in await driver.note("more: ")


async def test_a_file_sent_at_once_gets_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long").write_text("some words\n" * 600)
    async with chatting(Script(n_ctx=4000), size=(100, 24)) as driver:
        await driver.type("what is in @long ?")
        await driver.pilot.press("enter")
        await driver.last_reply()
        starts = driver.app.engine_thread.status.turn_starts
        reply = driver.chat.core.chat_session.conversation.last_reply
        assert reply is not None
        assert reply.figures is not None
        n_tokens = reply.figures.prompt_tokens + reply.figures.reused_tokens - starts[-1]
        await driver.shows(f"long: {n_tokens:,} tokens with the question")


async def test_reading_shows_progress_and_the_stop_key_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()

    def read(names: Sequence[str], only_existing: bool, follow: Follow) -> ReadDocuments:
        while follow(ReadingProgress(1, 60, Path("slow.html"))):
            time.sleep(0.01)
        stopped.set()
        return ReadDocuments((), ("slow.html: left out (stopped)",), is_stopped=True)

    monkeypatch.setattr(attachments, "read_documents", read)
    async with chatting() as driver:
        await driver.say("/read docs")
        await driver.shows("reading documents: 2 of 60, slow.html")
        assert not stopped.is_set()
        await driver.pilot.press("escape")
        await driver.until(stopped.is_set, "the reading stops")
        await driver.note("left out (stopped)")


async def test_several_dropped_files_are_all_in_the_command(tmp_path: Path) -> None:
    names = ("one.txt", "my note.txt", "it's.txt", "drei.txt")
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_text("words", encoding="utf-8")
    ways = (
        " ".join(f"'{file}'" if "'" not in file.name else f'"{file}"' for file in files),
        " ".join(str(file).replace(" ", "\\ ").replace("'", "\\'") for file in files),
        "\n".join(file.as_uri() for file in files),
        "\n".join(map(str, files)),
        " ".join(f"file://host{file.as_uri().removeprefix('file://')}" for file in files),
    )
    async with chatting() as driver:
        for way in ways:
            driver.prompt.clear()
            await paste(driver, way)
            assert driver.prompt.text.startswith("/read "), way
            assert split_wanted(driver.prompt.text.removeprefix("/read ")) == list(map(str, files))
        driver.prompt.clear()
        for file in files:  # one drop after the other
            await paste(driver, str(file).replace(" ", "\\ "))
        assert split_wanted(driver.prompt.text.removeprefix("/read ")) == list(map(str, files))
        driver.prompt.clear()
        await paste(driver, f"'{files[0]}' '{tmp_path}/none'")
        assert driver.prompt.text == f"'{files[0]}' '{tmp_path}/none'"

"""The documents screen: list, reading ahead, questions, deleting."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from app.conversations.conversation import ChatMessage, Role
from app.conversations.document_list import list_documents, load_document, remove_document
from app.conversations.state_files import kinds
from app.conversations.store import Store, put_message
from app.documents.text_file import attached
from app.text.chips import NBSP
from app.tui.chat import document_prefetcher as shelf_reading
from app.tui.chat.document_prefetcher import QUIET_S
from app.tui.widgets.message_view import ReplyView
from engine.errors import MemoryPlanError
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.conversations.fake_states import files, saved_in, with_one_vocabulary
from tests.app.fake_engine import Gate, Script

pytestmark = pytest.mark.slow

BOOK = "\n".join(f"Line {n} of the book." for n in range(40))
PLAN = "Buy nails.\nPaint the door."


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = chat_driver.options_for
    monkeypatch.setattr(
        chat_driver,
        "options_for",
        lambda script: dataclasses.replace(
            plain(script), state_files=partial(files, reads_ahead=True)
        ),
    )


@pytest.fixture
def _documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "plan.txt").write_text(PLAN)


async def ask_with(driver: Driver, files: str, question: str) -> ReplyView:
    """Attach files and ask a question."""
    await driver.say(f"/read {files}")
    await driver.until(
        lambda: files.split()[-1] in driver.prompt.draft.files_line, "they are attached"
    )
    return await ask(driver, question)


async def ask(driver: Driver, question: str) -> ReplyView:
    """Send the prompt and wait for the reply."""
    before = driver.chat.core.chat_session.conversation.last_reply
    driver.prompt.insert(question)
    await driver.pilot.press("enter")
    await driver.until(
        lambda: driver.chat.core.chat_session.conversation.last_reply is not before, "a reply"
    )
    await driver.until(lambda: driver.chat.core.chat_session.journal.wait_until_saved(0), "saved")
    return await driver.last_reply()


async def ask_about_both(driver: Driver) -> None:
    """Save a conversation with book and plan, and a later one with the plan only."""
    await ask_with(driver, "book.txt plan.txt", "what is this?")
    await driver.say("/new")
    await driver.note("New conversation")
    await ask_with(driver, "plan.txt", "and this?")


async def is_quiet(driver: Driver) -> None:
    """Let the chat be idle for a while."""
    shelf = driver.chat.core.documents
    driver.chat._read_documents()
    await driver.until(lambda: shelf._quiet_since_s is not None, "the engine is free")
    driver.script.clock.advance(QUIET_S)


async def all_is_read(driver: Driver) -> None:
    """Wait until both documents are read ahead."""
    shelf = driver.chat.core.documents
    await is_quiet(driver)
    await driver.until(
        lambda: len(shelf._progress) == 2 and all(one.is_whole for one in shelf._progress.values())
    )


@pytest.mark.usefixtures("_documents")
async def test_each_document_is_listed_once_until_deleted() -> None:
    async with chatting(Script(n_ctx=2048), size=(120, 30)) as driver:
        await driver.pilot.press("f6")
        await driver.shows("No documents yet")
        rows = driver.screen_text().splitlines()
        middle = [row for row in rows if "/read report.pdf" in row or "@report.pdf What" in row]
        assert len(middle) == 2
        assert 8 < rows.index(middle[0]) < 20, "in the middle of the screen"
        await driver.hides("ask about it")
        await driver.pilot.press("escape")
        await ask_about_both(driver)
        plan, book = list_documents(Store())
        assert (plan.name, plan.extent, plan.conversations) == (
            "plan.txt",
            "2 lines",
            ("000002", "000001"),
        )
        assert (book.name, book.extent, book.conversations) == ("book.txt", "40 lines", ("000001",))
        assert load_document(Store(), book).text == BOOK
        await all_is_read(driver)
        await driver.say("/shelf")
        await driver.until(lambda: driver.screen_text().count("100 %") == 2, "both are read")
        rows = [
            line for line in driver.screen_text().splitlines() if ".txt" in line and "lines" in line
        ]
        names = next(row for row in driver.screen_text().splitlines() if "length" in row)
        assert names.index("document") == rows[1].index("book.txt")
        assert [row.split()[1] for row in rows[:2]] == ["plan.txt", "book.txt"], (
            "the last used comes first"
        )
        await driver.pilot.press(*"book")
        await driver.hides("plan.txt")
        await driver.pilot.press("!")
        await driver.shows("No document has all these words in its name")
        await driver.pilot.press(*["backspace"] * 5, *"plan", "delete")
        await driver.shows("Delete plan.txt and its cached reading?")
        await driver.pilot.press("n")
        await driver.hides("Delete plan.txt")
        states = Store().segments("000001", only_own=True)
        (place,) = kinds()
        assert any(path.exists() for path in states)
        driver.chat.core.documents._may_read = bool  # nothing is read again
        await driver.pilot.press("delete", "y")
        await driver.hides("2 lines")
        await driver.pilot.press(*["backspace"] * 4)
        await driver.until(
            lambda: driver.screen_text().count("100 %") == 1, "the book is read still"
        )
        (read,) = driver.chat.core.documents._progress.values()
        assert set(place.glob("*.kv")) == set(read.files), "nothing of the plan is left"
        await driver.pilot.press("delete", "y")
        await driver.shows("No documents yet")
        assert not any(path.exists() for path in states)
        assert list_documents(Store()) == ()
        assert BOOK in Store().read("000001").conversation.messages[0].text
        await driver.pilot.press("escape")
        await driver.say("/new")
        await driver.note("New conversation")
        await ask_with(driver, "book.txt", "again?")
        assert [one.conversations for one in list_documents(Store()) if one.name == "book.txt"] == [
            ("000003",)
        ]


@pytest.mark.usefixtures("_documents")
async def test_a_document_too_long_for_the_context_can_be_asked_about(tmp_path: Path) -> None:
    async with chatting(Script(n_ctx=256), size=(100, 30)) as driver:
        await driver.say("/read book.txt")
        await driver.note("book.txt is too long")
        await ask(driver, "what of line 7?")
        (book,) = list_documents(Store())
        assert (book.extent, book.path, book.text_bytes) == (
            "40 lines",
            str(tmp_path / "book.txt"),
            0,
        )
        await driver.pilot.press("f6")
        await driver.until(
            lambda: re.search(r"book.txt +40 lines +~\d+ +passages", driver.screen_text())
        )
        await driver.pilot.press("enter")
        await driver.note("New conversation")
        reply = await ask(driver, "what of line 30?")
        assert reply.message is not None
        assert any("line" in one for one in reply.message.sources)
        await driver.pilot.press("f6")
        await driver.shows("40 lines")
        await driver.pilot.press("delete", "y")
        await driver.shows("No documents yet")
        assert list_documents(Store()) == ()
        assert (tmp_path / "book.txt").exists()
    with closing(sqlite3.connect(Store().root / "conversations.db")) as db, db:  # type: ignore[operator]
        db.execute("INSERT INTO long_document(path, name, n_pages) VALUES('a', 'book.txt', 'x')")
    assert list_documents(Store()) == ()


class Recording:
    """Fake embedding index that records its requests."""

    def __init__(self) -> None:
        self.learned: list[tuple[str, list[str]]] = []
        self.asked: list[str] = []
        self.kept: list[list[str]] = []

    def learn(self, document: str, texts: list[str], goes_on: Callable[[], bool]) -> bool:
        """Record the passages."""
        assert goes_on()
        self.learned.append((document, texts))
        return True

    def similarities(self, question: str, texts: list[str]) -> list[float | None]:
        """Record the question."""
        self.asked.append(question)
        return [None] * len(texts)

    def keep_only(self, documents: list[str]) -> None:
        """Record the remaining documents."""
        self.kept.append(documents)


@pytest.mark.usefixtures("_documents")
async def test_vectors_of_a_long_document_are_computed_when_idle() -> None:
    async with chatting(Script(n_ctx=256), size=(100, 30)) as driver:
        shelf = driver.chat.core.documents
        shelf.embeddings = seen = Recording()  # type: ignore[assignment]
        await driver.say("/read book.txt")
        await driver.note("book.txt is too long")
        await ask(driver, "what of line 7?")
        assert seen.asked == ["what of line 7?"]
        assert not seen.learned
        await is_quiet(driver)
        await driver.until(lambda: seen.learned, "they are made")
        (book,) = list_documents(Store())
        assert seen.learned == [(book.key, [BOOK])]
        await is_quiet(driver)
        assert len(seen.learned) == 1
        shelf.list_again(book)
        await driver.until(lambda: seen.kept[-1:] == [[]], "they are deleted with it")


@pytest.mark.smoke
async def test_a_failed_list_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: Store) -> None:
        raise ValueError("no list")

    async with chatting() as driver:
        monkeypatch.setattr(shelf_reading, "list_documents", broken)
        await driver.pilot.press("f6")
        await driver.shows("internal error: ValueError")
        await driver.pilot.press("escape")
        await driver.shows("Type here")


@pytest.mark.usefixtures("_documents")
async def test_documents_are_read_ahead_when_idle() -> None:
    script = with_one_vocabulary()
    script.n_ctx = 2048
    async with chatting(script) as driver:
        await ask_about_both(driver)
        session = driver.script.opened[0].sessions[0]
        held = list(session.tokens)
        await all_is_read(driver)
        assert session.tokens == held, "the conversation keeps its cache"
        assert all(one.is_closed for one in driver.script.opened[0].sessions[1:])
        await driver.pilot.press("f6")
        await driver.until(lambda: driver.screen_text().count("100 %") == 2, "both are read")
    async with chatting(script, resume="new") as driver:
        await driver.pilot.press("f6")
        await driver.shows("book.txt")
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: "book.txt" in driver.prompt.text, "it is attached")
        reply = await ask(driver, "who wrote it?")
        assert reply.message is not None
        assert reply.message.figures is not None
        assert reply.message.figures.prompt_tokens < 20
        assert reply.message.figures.reused_tokens > 150


@pytest.mark.usefixtures("_documents")
async def test_a_question_comes_before_a_document_is_read() -> None:
    script = Script(n_ctx=2048)
    async with chatting(script) as driver:
        await ask_about_both(driver)
        script.prefill_gate = Gate()
        await is_quiet(driver)
        await driver.until(script.prefill_gate.waiting.is_set, "a document is being read")
        script.prefill_gate.allow(60)
        await driver.until(script.prefill_gate.waiting.is_set, "some of it is")
        await driver.type("so")
        await driver.until(
            lambda: not driver.app.engine_thread.inbox.idle_work.is_pending, "it gave way"
        )
        script.prefill_gate = None
        await driver.pilot.press("enter")
        await driver.until(
            lambda: len(driver.chat.core.chat_session.conversation.messages) == 4, "asked"
        )
        (place,) = kinds()
        assert any(len(one) > 30 for one in saved_in(place)), "what was read by then is saved"


@pytest.mark.usefixtures("_documents")
async def test_documents_are_not_read_ahead_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chatting(Script(n_ctx=2048), size=(100, 30)) as driver:
        shelf = driver.chat.core.documents
        # nothing is read before memory is short
        quota_bytes = shelf._quota_bytes
        shelf._quota_bytes = 0
        await ask_with(driver, "book.txt", "what is this?")
        shelf._quota_bytes = quota_bytes

        def none(*_: object) -> None:
            raise MemoryPlanError("no memory for a context of 2,048 tokens")

        monkeypatch.setattr(driver.script.opened[0], "session", none)
        await is_quiet(driver)
        await driver.until(lambda: shelf.trouble, "it stops")
        assert not any(one.is_whole for one in shelf._progress.values())


def test_deleting_a_document_deletes_its_empty_conversation() -> None:
    store = Store()
    text = attached("book.txt", BOOK).strip()
    with closing(store.create()) as held:
        held.apply(
            [
                put_message(
                    0, ChatMessage(Role.USER, text, folded=f"[file{NBSP}1:{NBSP}book.txt]"), "2026"
                )
            ],
            True,
        )
    (book,) = list_documents(store)
    assert load_document(store, book).in_message.strip() == text
    remove_document(store, book)
    assert (list_documents(store), store.ids()) == ((), [])


@pytest.mark.usefixtures("_documents")
async def test_a_document_behind_another_was_read_together_with_it() -> None:
    async with chatting(Script(n_ctx=2048), size=(120, 30), prefill_while_typing="off") as driver:
        await ask_with(driver, "book.txt plan.txt", "why?")
        await driver.pilot.press("f6")
        await driver.shows("together")
        rows = [line for line in driver.screen_text().splitlines() if " lines " in line]
        assert [row.split()[1] for row in rows if "together" in row] == ["plan.txt"]
        await driver.pilot.press("down")
        await driver.shows("Read together with book.txt")

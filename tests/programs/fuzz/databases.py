"""Databases of conversations with damage: no exception, clean text, and what is said afterwards is
read again.

Bytes of the file are changed anywhere, rows get values of any type, and rows and tables vanish.
SQLite keeps no checksums, so changed letters within a text are not known; all else must be told,
mended or left out.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from random import Random

from app.conversations.conversation import Conversation, Ending, Role
from app.conversations.database import NAME
from app.conversations.journal import Journal, PartialReply
from app.conversations.locks import StoreError
from app.conversations.store import LoadedConversation, Store
from tests.programs.fuzz.mutation import edge, mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_CPU_S = 10.0
_MEMORY_BYTES = 64 << 20
_PATIENCE_S = 60.0
_TABLES = (
    "conversation",
    "message",
    "piece",
    "segment",
    "search_data",
    "search_idx",
    "sqlite_master",
)


@lru_cache(maxsize=1)
def _sound() -> tuple[bytes, ...]:
    databases = []
    for n_turns, has_interrupted_turn in ((1, True), (5, False), (60, True)):
        with tempfile.TemporaryDirectory() as directory:
            store = Store(Path(directory, "conversations"))
            conversation = Conversation("Be brief.")
            journal = Journal(store, lambda: "2026-11-21T10:00:00+00:00")
            for n in range(n_turns):
                conversation.add_user(f"question {n}")
                journal.save_question(conversation, is_replacing=False)
                if n < n_turns - 1 or not has_interrupted_turn:
                    conversation.add_reply(f"answer {n} " * 20, Ending.COMPLETE, None)
                    journal.save_turn_end(conversation)
            if has_interrupted_turn:
                journal.save_partial(conversation, PartialReply("and", "hm", (1,), "and"))
            assert journal.close(_PATIENCE_S) == ""
            databases.append((store.root / NAME).read_bytes() if store.root is not None else b"")
    return tuple(databases)


def seeds() -> list[bytes]:
    """Sound databases."""
    return list(_sound())


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change bytes, or values and rows."""
    if rng.randrange(3) == 0:
        return mutate_bytes(rng, data, inputs)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, NAME)
        path.write_bytes(data)
        with suppress(sqlite3.Error, OverflowError), closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA writable_schema=ON")
            table = rng.choice(_TABLES)
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")] or ["rowid"]
            value = rng.choice(
                (
                    None,
                    -1,
                    0.5,
                    1e308,
                    edge(rng),
                    "",
                    "x" * 5000,
                    "\x1b]0;x\x07\u202e",
                    "[]",
                    "{}",
                    b"\xff",
                )
            )
            which = f"rowid % {rng.randrange(1, 5)} = 0"
            if rng.randrange(3):
                db.execute(f"UPDATE {table} SET {rng.choice(columns)}=? WHERE {which}", (value,))
            else:
                db.execute(f"DELETE FROM {table} WHERE {which}")
        return path.read_bytes()


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Read all, look at what is shown, go on with one, and read it again."""
    store = Store(folder / "conversations")
    assert store.root is not None
    store.root.mkdir(mode=0o700)
    (store.root / NAME).write_bytes(data)
    try:
        with watch.bounded("reading", _CPU_S, _MEMORY_BYTES):
            store.search("question")
            ids = store.ids()
            store.check_and_copy(1e9)
            opened = store.open(ids[0]) if ids else None
    except StoreError as error:
        return f"refused: {require_clean_line(str(error))}"
    outcome = "mended" if store.take_notice() else "read"
    if opened is None:
        return f"{outcome}: nothing left"
    if opened.open_conversation is None:
        raise Fault(f"no one has it, but it cannot be gone on with: {opened.obstacle}")
    conversation = opened.saved.conversation
    try:
        require_clean(opened)
        require_sound_context(conversation)
    except BaseException:
        opened.open_conversation.close()
        raise
    journal = Journal(store)
    journal.resume(opened)
    conversation.add_user(*conversation.join_unanswered("and then?"))
    journal.save_question(conversation, is_replacing=False)
    conversation.add_reply("then this", Ending.COMPLETE, None)
    journal.save_turn_end(conversation)
    if trouble := journal.close(_PATIENCE_S):
        return f"{outcome}: not saved: {require_clean_line(trouble)}"
    messages = store.read(opened.id).conversation.messages
    if store.take_notice():
        return f"{outcome}: mended when it went on"
    if [message.text for message in messages] != [
        message.text for message in conversation.messages
    ]:
        raise Fault("after going on there is something else")
    return f"{outcome}{', gaps' if any(message.is_missing for message in messages) else ''}"


def require_clean(opened: LoadedConversation) -> None:
    """Check that nothing of it can harm a screen."""
    saved = opened.saved
    for line in (saved.title, saved.model, saved.began, saved.changed, opened.notice):
        if not line.isprintable():
            raise Fault(f"a line that is shown holds control characters: {line!r}")
    for message in saved.conversation.messages:
        if any(not char.isprintable() and char not in "\n\t\u200c\u200d\u200e\u200f\u061c" and ord(char) < 0xA0
               for char in message.text):  # fmt: skip
            raise Fault(f"a message holds control characters: {message.text!r}")


def require_sound_context(conversation: Conversation) -> None:
    """Check that the model is told of whole turns, and of nothing that is missing."""
    messages = conversation.messages
    if [message.role for message in messages] != [
        (Role.USER, Role.ASSISTANT)[n % 2] for n in range(len(messages))
    ]:
        raise Fault("the sides do not take turns")
    if any(message.is_missing for message in messages[conversation.n_dropped :]):
        raise Fault("the model is told of what is missing")


TARGET = Target(
    seeds,
    mutate,
    run,
    source=("app/conversations/database.py", "app/conversations/store.py",
            "app/conversations/upkeep.py",
            "app/conversations/message_row.py"),
)  # fmt: skip

"""``jalopy run --session NAME``: a name stands for one conversation, even if its file is damaged or
several processes start at once."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, suppress

import pytest

from app.conversations.database import NAME
from app.conversations.store import Store
from app.program import exit_codes
from app.program.refusals import Refusal
from tests.app.conversations import session_starter
from tests.app.conversations.session_starter import open_session


def say_in(name, text="hello"):
    assert session_starter.say_in(open_session(name), text) == ""


@pytest.fixture
def file():
    say_in("notes")
    return Store().root / NAME


def newer(file):
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("PRAGMA user_version=9")


def too_large(file):
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE message SET place=1000000")


def link(file):
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "spoil", [newer, too_large, link, pipe], ids=lambda function: function.__name__
)
def test_no_second_conversation_starts_if_the_first_is_damaged(file, spoil):
    spoil(file)
    for name in ("notes", " NOTES", "1", "notes"):
        with pytest.raises(Refusal, match="jalopy run: ") as refused:
            open_session(name)
        assert refused.value.exit_code == exit_codes.IO_ERROR
        assert "\n" not in str(refused.value)


def test_a_conversation_with_a_lost_title_is_found_by_its_number(file):
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE conversation SET title=NULL")
    say_in("1", "again")
    assert Store().ids() == ["000001"]


def test_a_conversation_without_messages_leaves_no_file():
    talk = open_session("notes")
    assert Store().ids() == ["000001"]
    assert talk.close() == ""
    assert Store().ids() == []


# ---- at once


@contextmanager
def parallel_starters(n, name):
    """Let several processes open a conversation at once.

    Yields their parent process and the line that each of them reports.
    """
    command = [sys.executable, "-m", "tests.app.conversations.session_starter", name, str(n)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        advance(process, n)
        yield process, [process.stdout.readline().rstrip("\n") for _ in range(n)]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def advance(process, n):
    process.stdin.write("." * n)
    process.stdin.flush()


@pytest.mark.smoke
@pytest.mark.slow
def test_only_one_of_three_processes_starts_the_conversation():
    with parallel_starters(3, "notes") as (process, lines):
        assert sum(line.startswith("open: ") for line in lines) == 1, lines
        assert sum("in use by another jalopy" in line for line in lines) == 2, lines
        advance(process, 1)
        assert process.wait(60) == 0
    assert Store().ids() == ["000001"]
    assert Store().find("notes") == "000001"
    say_in("notes", "it goes on")
    assert len(Store().read("000001").conversation.messages) == 1


def test_a_kill_before_any_message_leaves_the_name_free():
    with parallel_starters(1, "notes") as (_, lines):
        assert lines == ["open: 000001"]
    say_in("notes")
    assert Store().ids() == ["000001"]
    assert [message.text for message in Store().read("000001").conversation.messages] == ["hello"]

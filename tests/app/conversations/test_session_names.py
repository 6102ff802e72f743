"""``jalopy run --session NAME``: one name is one conversation, whatever became of its file and whoever starts when."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

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
        db.execute("PRAGMA user_version=2")


def too_large(file):
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE message SET place=1000000")


def link(file):
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("spoil", [newer, too_large, link, pipe], ids=lambda one: one.__name__)
def test_no_second_conversation_begins_if_the_first_is_spoilt(file, spoil):
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


def test_a_conversation_in_which_nothing_is_said_leaves_nothing():
    talk = open_session("notes")
    assert Store().ids() == ["000001"]
    assert talk.close() == ""
    assert Store().ids() == []


# ---- at once


@contextmanager
def starters(n, name):
    command = [sys.executable, "-m", "tests.app.conversations.session_starter", name]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(n)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def let_go(processes):
    """All go on at once; returns what each says."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.stdout.readline().rstrip("\n") for process in processes]


@pytest.mark.slow
def test_of_three_that_start_at_once_one_begins_the_conversation():
    with starters(3, "notes") as processes:
        said = let_go(processes)
        assert sum(line.startswith("open: ") for line in said) == 1, said
        assert sum("in use by another jalopy" in line for line in said) == 2, said
        first = processes[[line.startswith("open: ") for line in said].index(True)]
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.wait(60) == 0
    assert Store().ids() == ["000001"]
    assert Store().find("notes") == "000001"
    say_in("notes", "it goes on")
    assert len(Store().read("000001").conversation.messages) == 1


def test_one_killed_before_any_message_leaves_its_name_free():
    with starters(1, "notes") as (process,):
        assert let_go([process]) == ["open: 000001"]
    say_in("notes")
    assert Store().ids() == ["000001"]
    assert [message.text for message in Store().read("000001").conversation.messages] == ["hello"]

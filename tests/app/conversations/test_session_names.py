"""``jalopy run --session NAME``: one name is one conversation, whatever became of its file and whoever starts when."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from app.conversations.log_file import MOST_LOG_BYTES
from app.conversations.records import read_record, write_record
from app.conversations.store import LOG_NAME, Store
from app.program import exit_codes
from app.program.refusals import Refusal
from tests.app.conversations import session_starter
from tests.app.conversations.session_starter import open_session


def say_in(name, text="hello"):
    assert session_starter.say_in(open_session(name), text) == ""


@pytest.fixture
def log():
    say_in("notes")
    return Store().root / "000001" / LOG_NAME


def newer(log):
    head, *rest = log.read_bytes().splitlines(keepends=True)
    values = {**read_record(head[:-1]), "version": 2}
    log.write_bytes(write_record(values) + b"".join(rest))


def newer_and_longer(log):
    log.write_bytes(log.read_bytes() + write_record({"k": "of a newer version"}))


def too_long(log):
    os.truncate(log, MOST_LOG_BYTES + 1)


def link(log):
    log.rename(log.with_name("elsewhere"))
    log.symlink_to("elsewhere")


def linked_directory(log):
    log.parent.rename(log.parent.parent / "elsewhere")
    log.parent.symlink_to("elsewhere")


def pipe(log):
    log.unlink()
    os.mkfifo(log)


def directory(log):
    log.unlink()
    log.mkdir()


def empty(log):
    os.truncate(log, 0)


@pytest.mark.parametrize(
    "spoil",
    [newer, newer_and_longer, too_long, link, linked_directory, pipe, directory, empty],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("name", ["notes", " NOTES", "1"])
def test_no_second_conversation_is_begun_where_the_first_cannot_be_read(log, spoil, name):
    spoil(log)
    for _ in range(2):
        with pytest.raises(Refusal, match="jalopy run: conversation ") as refused:
            open_session(name)
        assert refused.value.exit_code == exit_codes.IO_ERROR
        assert "\n" not in str(refused.value)
        list(Store().entries())  # the list is looked at in between
    assert Store().ids() == ["000001"]
    say_in("other")
    assert Store().ids() == ["000001", "000002"]


def test_another_users_conversation_is_refused(log, monkeypatch):
    monkeypatch.setattr("app.program.paths.private_directory", lambda path: path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Refusal, match="jalopy run: conversation notes: "):
        open_session("notes")


def test_a_conversation_whose_title_is_not_known_is_named_when_another_is_begun(log, capsys):
    pipe(log)
    (log.parent / "summary.json").unlink()
    say_in("notes")
    assert "conversation 1 cannot be read, nor what it was called" in capsys.readouterr().err
    assert Store().ids() == ["000001", "000002"]
    say_in("notes")
    assert "cannot be read" not in capsys.readouterr().err
    assert Store().ids() == ["000001", "000002"]


def test_a_title_whose_line_is_damaged_still_leads_to_its_conversation(log, capsys):
    lines = log.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"title"' in line)
    log.write_bytes(b"".join([*lines[:at], b"damaged\n", *lines[at + 1 :]]))
    for n in range(2):
        say_in("notes", f"again {n}")
    assert Store().ids() == ["000001"]
    assert Store().read("000001").title == "notes"


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
def test_of_six_that_start_at_once_one_begins_the_conversation():
    for n in range(3):
        name = f"notes {n}"
        with starters(6, name) as processes:
            said = let_go(processes)
            assert sum(line.startswith("open: ") for line in said) == 1, said
            assert sum("in use by another jalopy" in line for line in said) == 5, said
            first = processes[[line.startswith("open: ") for line in said].index(True)]
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.wait(60) == 0
        assert len(Store().ids()) == n + 1
        assert Store().find(name) == f"{n + 1:06d}"
        say_in(name, "it goes on")
        assert len(Store().read(f"{n + 1:06d}").conversation.messages) == 1


def test_one_that_is_killed_before_anything_is_said_leaves_its_name_free():
    with starters(1, "notes") as (process,):
        assert let_go([process]) == ["open: 000001"]
    say_in("notes")
    assert Store().ids() == ["000001"]
    assert [message.text for message in Store().read("000001").conversation.messages] == ["hello"]

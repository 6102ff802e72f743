"""SQLite's method: let the n-th call to the disk fail, for n = 1, 2, ... until none does, and look what is lost."""

import errno
import os
import threading
from pathlib import Path

import pytest

from app.conversations import keeper as keepers
from app.conversations import log_file
from app.conversations.conversation import Conversation
from app.conversations.store import Store
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk, texts_in

CALLS = ("open", "write", "fsync", "ftruncate", "replace", "mkdir", "close")


class FailingDisk:
    """Lets one call fail, or from one call on all; only calls of the keeper's thread count."""

    def __init__(self, monkeypatch, names, at, error, stays):
        self.n, self.at, self.stays, self.error = 0, at, stays, error
        self.is_mended = False
        for name in names:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name, real):
        def call(*arguments, **named):
            if threading.current_thread().name != "jalopy-transcript" or self.is_mended:
                return real(*arguments, **named)
            self.n += 1
            if self.n == self.at or (self.stays and self.n > self.at):
                if name == "close":
                    real(*arguments, **named)
                if name == "write" and len(arguments[1]) > 1:
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **named)

        return call


def _talk(root: Path) -> tuple[list[str], str]:
    made, conversation = journal(root), Conversation("Be brief.")
    for n in range(2):
        ask(made, conversation, f"question {n}")
        answer(made, conversation, f"answer {n}")
    texts = [message.text for message in conversation.messages]
    return texts, made.close(PATIENCE_S)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_one_failure_anywhere_loses_nothing(tmp_path, monkeypatch, error):
    monkeypatch.setattr(keepers, "RETRY_S", 0.0)
    n_failed = 0
    for at in range(1, 200):
        root = tmp_path / str(at) / "state"
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, CALLS, at, error, stays=False)
            texts, trouble = _talk(root)
        if disk.n < at:
            break
        n_failed += 1
        conversation_id = max(Store(root).ids(), default="")
        assert conversation_id, f"call {at}: nothing is there"
        assert texts_in(root, conversation_id) == texts, f"call {at} of {error}: {trouble}"
    assert n_failed > 5
    assert disk.n < at


def test_a_full_disk_is_named_and_what_was_saved_before_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(keepers, "RETRY_S", 0.0)
    for at in range(1, 40):
        root = tmp_path / str(at) / "state"
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, ("open", "write", "fsync"), at, errno.ENOSPC, stays=True)
            texts, trouble = _talk(root)
        if disk.n < at:
            break
        is_whole = [texts_in(root, conversation_id) for conversation_id in Store(root).ids()] == [texts]
        assert trouble == "the disk is full" or (is_whole and trouble == "")
        for conversation_id in Store(root).ids():
            found = texts_in(root, conversation_id)
            assert found[:-1] == texts[: len(found) - 1] if found else True


def test_saving_goes_on_when_there_is_room_again(tmp_path, monkeypatch):
    monkeypatch.setattr(keepers, "RETRY_S", 0.01)
    root = tmp_path / "state"
    with monkeypatch.context() as patched:
        disk = FailingDisk(patched, ("write", "fsync"), 1, errno.ENOSPC, stays=True)
        made, conversation = journal(root), Conversation()
        ask(made, conversation, "question")
        assert not made.settle(PATIENCE_S, waits_for_room=False)
        assert made.trouble == "the disk is full"
        disk.is_mended = True
        assert made.settle(PATIENCE_S)
    assert made.trouble == ""
    assert made.close(PATIENCE_S) == ""
    assert texts_in(root) == ["question"]


def _keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jalopy-transcript"]


def test_a_conversation_that_was_left_is_saved_when_there_is_room_again(tmp_path, monkeypatch):
    monkeypatch.setattr(keepers, "RETRY_S", 0.01)
    root, before = tmp_path / "state", _keepers()
    with monkeypatch.context() as patched:
        disk = FailingDisk(patched, ("write", "fsync"), 1, errno.ENOSPC, stays=True)
        made, conversation = journal(root), Conversation()
        ask(made, conversation, "question")
        made.begin()
        disk.is_mended = True
        for thread in set(_keepers()) - set(before):  # it ends by itself once nothing is left to do
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert texts_in(root) == ["question"]
    assert made.trouble == ""
    assert made.close(0) == ""


def test_a_conversation_that_was_left_and_never_saved_is_named_at_the_end(tmp_path, monkeypatch):
    root, before = tmp_path / "state", _keepers()
    with monkeypatch.context() as patched:
        FailingDisk(patched, ("write", "fsync"), 1, errno.ENOSPC, stays=True)
        made, conversation = journal(root), Conversation()
        ask(made, conversation, "question")
        made.begin()
        ask(made, Conversation(), "another")
        assert made.close(PATIENCE_S) == "the disk is full"
        assert set(_keepers()) <= set(before)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_costs_nothing_but_the_saving(tmp_path):
    tmp_path.chmod(0o500)
    try:
        made, conversation = journal(tmp_path / "state"), Conversation()
        ask(made, conversation, "question")
        assert "writable" in made.close(PATIENCE_S) or made.trouble
    finally:
        tmp_path.chmod(0o700)


def test_a_place_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "state").write_text("a file, no directory")
    made, conversation = journal(tmp_path / "state" / "conversations"), Conversation()
    ask(made, conversation, "question")
    answer(made, conversation, "answer")
    assert "not writable" in made.close(PATIENCE_S)


def test_clocks_that_jump_change_no_order(tmp_path):
    root = tmp_path / "state"
    for moment in ("2026-11-21T10:00:00", "1970-01-01T00:00:00", "2099-01-01T00:00:00", "2001-01-01T00:00:00"):
        made, conversation = journal(root), Conversation()
        made.clock_text = lambda moment=moment: moment
        ask(made, conversation, moment)
        assert made.close(PATIENCE_S) == ""
    store = Store(root)
    by_use = sorted(store.entries(), key=lambda entry: entry.summary.order)
    assert [entry.id for entry in by_use] == ["000001", "000002", "000003", "000004"]
    assert store.newest("/models/tiny.gguf") == "000004"


def test_losing_every_sidecar_costs_only_a_look(tmp_path):
    root = tmp_path / "state"
    saved_talk(root)
    saved_talk(root)
    before = list(Store(root).entries())
    for path in (*root.glob("*/summary.json"), root / "recent.json"):
        path.write_bytes(b"\0 damaged")
    assert list(Store(root).entries()) == before
    assert Store(root).newest("/models/tiny.gguf") == "000002"


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "EINVAL"])
def test_where_files_cannot_be_locked_everything_is_saved_and_that_is_known(tmp_path, monkeypatch, error):
    def refuse(*_):
        raise OSError(getattr(errno, error), error)

    monkeypatch.setattr(log_file.fcntl, "flock", refuse)
    root = tmp_path / "state"
    made, conversation = journal(root), Conversation()
    ask(made, conversation, "question")
    assert made.settle(PATIENCE_S)
    assert (made.trouble, made.is_unlocked) == ("", True)
    assert made.close(PATIENCE_S) == ""
    opened = Store(root).open("000001")
    assert opened.log is not None
    assert not opened.log.is_locked
    assert opened.notice == ""
    opened.log.close()
    assert texts_in(root) == ["question"]
    Store(root).delete("000001")
    assert Store(root).ids() == []


def test_another_failure_to_lock_is_trouble(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(log_file.fcntl, "flock", refuse)
    made, conversation = journal(tmp_path / "state"), Conversation()
    ask(made, conversation, "question")
    assert made.close(PATIENCE_S) == os.strerror(errno.EIO)


@pytest.mark.parametrize("name", ["999999999999", "099999999999", "999999999900"])
def test_a_directory_of_a_huge_number_hides_no_conversation(tmp_path, name):
    root = tmp_path / "state"
    saved_talk(root)
    (root / name).mkdir()
    texts = saved_talk(root)
    assert texts_in(root, "000002") == texts
    assert [entry.id for entry in Store(root).entries()] == ["000002", "000001"]

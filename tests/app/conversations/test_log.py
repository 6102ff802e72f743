import os
import stat
import subprocess
import sys

import pytest

from app.conversations import log_file, records
from app.conversations.conversation import Conversation, Ending
from app.conversations.log_file import HOLDER_NAME, LogFile, LogRefusedError, read_log
from app.conversations.records import read_record, write_record
from app.conversations.replay import NOTHING, VERSION, Replay, head_record, title_of
from app.conversations.store import LOG_NAME, Store
from app.conversations.thinking import Thinking
from app.tui import draft as drafts
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk, texts_in

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "conversations"


@pytest.fixture
def log(root):
    saved_talk(root)
    return root / "000001" / LOG_NAME


def test_a_conversation_comes_back_whole(root, log):
    saved = Store(root).read("000001")
    conversation = saved.conversation
    assert conversation.system == "Be brief."
    assert [m.text for m in conversation.messages][:2] == ["question 0 ☃", "answer 0, at some length"]
    reply = conversation.messages[1]
    assert (reply.ids, reply.raw) == ((7, 8, 9), "<think>hm</think>answer 0, at some length")
    assert reply.figures is not None
    assert reply.figures.range_tps == (1.9, 2.1)
    assert reply.thinking is not None
    assert (reply.thinking.text, reply.thinking.is_closed) == ("hm", True)
    assert (saved.model, saved.model_path) == ("tiny Q4_K_M", "/models/tiny.gguf")


def test_files_are_for_their_owner_alone(root, log):
    for path in (log, log.parent / "summary.json", root / "recent.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in (log.parent, root):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_a_file_that_others_may_read_is_closed_to_them(log):
    log.chmod(0o644)
    LogFile.open(log).close()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_cut_anywhere_it_keeps_whole_records_and_goes_on(root, log):
    content = log.read_bytes()
    whole = texts_in(root)
    for size in range(len(content)):
        log.write_bytes(content[:size])
        opened = Store(root).open("000001")
        assert opened.log is not None
        texts = [message.text for message in opened.saved.conversation.messages]
        # The last reply may be known by its first half.
        assert texts[:-1] == whole[: len(texts) - 1] if texts else True
        assert not texts or whole[len(texts) - 1].startswith(texts[-1])
        assert content.startswith(log.read_bytes())
        assert log.read_bytes() == content[: content.rfind(b"\n", 0, size) + 1]
        has_head = b"\n" in content[:size]
        opened.log.append([write_record({"k": "title", "text": "on"})] if has_head else [])
        opened.log.close()
        assert Store(root).read("000001").title == ("on" if has_head else "")
        assert not list(log.parent.glob("*.corrupt"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\0" * 4096,
        b"00000000 {}\n",
        b"x" * 100_000,
        write_record({"k": "head"}),
        write_record({"k": "head", "format": "jalopy conversation", "version": True, "at": ""}),
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_log_is_an_empty_conversation(root, log, content):
    log.write_bytes(content)
    opened = Store(root).open("000001")
    assert opened.saved.conversation.is_empty
    assert opened.log is not None
    opened.log.close()


@pytest.mark.parametrize("content", [b"", b"5", b"\0" * 4096, b"00000000 {}\n"])
def test_what_is_said_in_a_log_that_lost_its_beginning_is_kept(root, log, content):
    log.write_bytes(content)
    made, opened = journal(root), Store(root).open("000001")
    made.adopt(opened)
    ask(made, opened.saved.conversation, "hello again")
    assert made.close(PATIENCE_S) == ""
    assert texts_in(root) == ["hello again"]


def test_a_title_in_a_log_that_lost_its_beginning_is_kept(root, log):
    log.write_bytes(b"")
    Store(root).rename("000001", "found again")
    assert Store(root).read("000001").title == "found again"


@pytest.mark.parametrize(
    "record",
    [
        {"k": "reply", "text": "nobody asked"},
        {"k": "reply", "text": "x", "ending": "sideways"},
        {"k": "say", "text": 5},
        {"k": "say", "text": "x", "order": -1},
        {"k": "say", "text": "x", "order": 1 << 60},
        {"k": "keep", "n": 99},
        {"k": "keep", "n": "2"},
        {"k": "drop", "n": 99},
        {"k": "part", "text": "no question"},
        {"k": "part", "ids": ["1"], "text": ""},
    ],
)
def test_a_sound_checksum_does_not_make_a_record_sense(root, log, record):
    texts = texts_in(root)
    with log.open("ab") as file:
        file.write(write_record(record) + write_record({"k": "title", "text": "behind"}))
    opened = Store(root).open("000001")
    assert [m.text for m in opened.saved.conversation.messages] == texts
    assert opened.notice == "1 line of its file is damaged: what was said behind message 6 is missing"
    assert opened.saved.title == "behind"
    opened.log.close()


def test_a_newer_version_is_left_as_it_is(root, log):
    newer = write_record({"k": "head", "format": "jalopy conversation", "version": VERSION + 1, "at": ""})
    for content in (newer, log.read_bytes() + write_record({"k": "hologram"})):
        log.write_bytes(content)
        with pytest.raises(LogRefusedError, match="newer version"):
            Store(root).open("000001")
        assert log.read_bytes() == content
        entry = Store(root).entry("000001")
        assert entry is not None
        assert "newer version" in entry.trouble


def test_hostile_text_is_harmless_when_it_comes_back(root):
    made, conversation = journal(root), Conversation("\x1b]0;pwned\x07")
    ask(made, conversation, "\x1b[2J\u202e\ud800 text")
    assert made.close(PATIENCE_S) == ""
    saved = Store(root).read("000001")
    shown = saved.conversation.messages[0].text + saved.shown_title + (saved.conversation.system or "")
    assert not any(ord(c) < 0x20 or c in "\u202e\ud800\x9b" for c in shown)
    assert "text" in saved.conversation.messages[0].text
    assert "pwned" in (saved.conversation.system or "")


def test_a_link_is_not_followed(root, log, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        Store(root).open("000001")
    log.parent.rename(tmp_path / "moved")
    (root / "000001").symlink_to(tmp_path / "moved")
    with pytest.raises(LogRefusedError, match="yours"):
        Store(root).open("000001")
    assert Store(root).entry("000001") is None


def test_another_users_file_is_refused(root, log, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(LogRefusedError):
        Store(root).open("000001")


@pytest.mark.parametrize("make", [lambda path: os.mkfifo(path), lambda path: path.mkdir()])
def test_what_is_no_plain_file_is_refused_without_waiting(root, log, make):
    log.unlink()
    make(log)
    with pytest.raises((LogRefusedError, OSError)):
        Store(root).open("000001")


def test_a_second_one_gets_a_copy_until_the_first_is_closed(root, log):
    first = Store(root).open("000001")
    second = Store(root).open("000001")
    assert first.log is not None
    assert second.log is None
    assert f"in use by another jalopy (process {os.getpid()}, since " in second.notice
    assert second.notice.endswith("): you go on with a copy")
    assert second.saved.conversation.messages[0].text == first.saved.conversation.messages[0].text
    with pytest.raises(LogRefusedError, match="in use"):
        Store(root).delete("000001")
    first.log.close()
    third = Store(root).open("000001")
    assert third.log is not None
    third.log.close()


def test_the_lock_of_a_killed_process_is_gone(root, log):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom app.conversations.store import Store\n"
        "o = Store(Path(sys.argv[1])).open('000001')\nprint(bool(o.log), flush=True)\ntime.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    second = Store(root).open("000001")
    assert second.log is None
    assert f"(process {holder.pid}, since " in second.obstacle
    holder.kill()
    holder.wait()
    holder.stdout.close()
    again = Store(root).open("000001")
    assert again.log is not None
    again.log.close()


@pytest.mark.parametrize("note", [b"", b"{}", b"[1]", b'{"pid": -1, "since": "x"}', b"x" * 9000, None])
def test_a_holder_that_is_not_known_is_not_named(root, log, note):
    first = Store(root).open("000001")
    if note is None:
        (log.parent / HOLDER_NAME).unlink()
    else:
        (log.parent / HOLDER_NAME).write_bytes(note)
    assert Store(root).open("000001").notice == "in use by another jalopy: you go on with a copy"
    assert first.log is not None
    first.log.close()


class FakeMsvcrt:
    """Windows' locks: of bytes of a file, one holder each."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self):
        self.held = {}

    def locking(self, handle, mode, n_bytes):
        key = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR), n_bytes
        if mode == self.LK_UNLCK:
            del self.held[key]
        elif key in self.held:
            raise PermissionError(13, "Permission denied")
        else:
            self.held[key] = handle


def test_windows_has_a_lock_too(root, log, monkeypatch):
    windows = FakeMsvcrt()
    monkeypatch.setattr(log_file, "fcntl", None)
    monkeypatch.setattr(log_file, "msvcrt", windows)
    monkeypatch.delattr(os, "pread")
    texts = texts_in(root)
    first, second = Store(root).open("000001"), Store(root).open("000001")
    assert first.log is not None
    assert second.log is None
    assert [message.text for message in second.saved.conversation.messages] == texts
    ((_, at, _),) = windows.held
    assert at > log_file.MOST_LOG_BYTES, "what is locked could not be read"
    first.log.append([write_record({"k": "title", "text": "on"})])
    first.log.close()
    assert windows.held == {}
    third = Store(root).open("000001")
    assert third.saved.title == "on"
    assert third.log is not None
    third.log.close()


def test_records_survive_their_own_writing():
    values = {"k": "say", "text": "a\nb\u2028\ud83d", "n": [1, 2]}
    line = write_record(values)
    assert line.count(b"\n") == 1
    assert read_record(line[:-1]) == values


def test_an_interrupted_reply_is_there_as_far_as_it_was_flushed():
    head = write_record({"k": "head", "format": "jalopy conversation", "version": 1, "at": "", "system": None})
    lines = [
        write_record({"k": "say", "text": "why?", "at": "", "order": 1}),
        write_record({"k": "part", "text": "Be", "thought": "", "ids": [1], "raw": "Be"}),
        write_record({"k": "part", "text": "cause", "thought": "", "ids": [2], "raw": "cause"}),
    ]
    reply = read_log(head + b"".join(lines)).saved.conversation.messages[-1]
    assert (reply.text, reply.ids, reply.raw, reply.ending) == ("Because", (1, 2), "Because", Ending.INTERRUPTED)


def test_what_is_too_long_to_be_read_again_is_written_shorter_and_the_rest_goes_on(root):
    text = "\N{PISTOL}" * (records.MOST_RECORD_BYTES // 12 + 1)
    made, conversation = journal(root), Conversation()
    ask(made, conversation, text)
    reply = conversation.add_reply(text, Ending.STOPPED, None, Thinking(text))
    reply.ids, reply.raw = (7,) * (records.MOST_RECORD_BYTES // 2), text
    made.note_settled(conversation)
    ask(made, conversation, "and then?")
    assert made.close(PATIENCE_S) == ""
    question, answer, last = texts_in(root)
    for shortened in (question, answer):
        beginning = shortened.removesuffix(records.CUT_MARK)
        assert beginning != shortened
        assert len(beginning) >= 10_000
        assert text.startswith(beginning)
    assert last == "and then?"
    assert Store(root).read("000001").conversation.messages[1].ids == ()


def test_a_log_never_gets_too_long_to_be_read_again(root, monkeypatch):
    monkeypatch.setattr(log_file, "MOST_LOG_BYTES", 8 << 10)
    made, conversation = journal(root), Conversation()
    while not made.trouble:
        assert len(conversation.messages) < 100
        ask(made, conversation, "question")
        answer(made, conversation, "answer")
        made.settle(PATIENCE_S, waits_for_room=False)
    assert made.trouble.startswith("its file is full")
    assert made.close(PATIENCE_S) == made.trouble
    found = texts_in(root)
    assert len(found) > 10
    assert found == ["question", "answer"] * (len(found) // 2) + ["question"] * (len(found) % 2)


def test_a_conversation_is_deleted_with_its_log_last_so_that_the_rest_is_never_left_alone(root, log, monkeypatch):
    for n in range(6):
        (log.parent / f"kv.state.{n}").write_bytes(b"x" * 1000)
    (log.parent / "folder").mkdir()
    real, removed = os.unlink, []

    def unlink(path, **named):
        real(path, **named)
        removed.append(os.path.basename(path))

    monkeypatch.setattr(os, "unlink", unlink)
    Store(root).delete("000001")
    assert not log.parent.exists()
    assert len(removed) > 6
    assert removed[-1] == LOG_NAME


def test_a_title_is_what_was_typed_behind_the_chips() -> None:
    file, paste = drafts.write_chip(1, "a fan", "notes.md"), drafts.write_chip(2, "x\n" * 20)
    assert title_of(f"{file} {paste} what is it?\nSay.") == "what is it?"
    assert title_of(f"{file}\nwhat is it?") == "what is it?"
    assert title_of(f"Is {file} sound?").startswith("Is [file 1: notes.md")
    assert title_of(file).startswith("[file 1: notes.md")
    assert title_of("[file 1: no chip] x") == "[file 1: no chip] x"


def test_counts_may_be_larger_than_the_links_of_a_log() -> None:
    replay = Replay()
    replay.take(head_record(None, ""), 1)
    replay.take({"k": "say", "text": "?", "order": 1 << 40, "on": NOTHING}, 2)
    assert replay.finish().order == 1 << 40

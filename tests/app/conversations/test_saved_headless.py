"""Saved conversations of ``jalopy run --session`` and the line mode, which save and resume as the
chat does."""

import errno
import fcntl
import io
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from app.backend.local import engine_access
from app.cli import line_mode as plain
from app.cli.run import RunOptions, run
from app.conversations.conversation import Conversation, Ending, Role
from app.conversations.journal import Journal, SaverThread
from app.conversations.locks import StoreError
from app.conversations.state_files import kinds
from app.conversations.store import OpenConversation, Store, model_key
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.session import headless as talks
from engine.errors import BrokenModelError
from tests.app.conversations.fake_states import files, saved_in, with_one_vocabulary
from tests.app.conversations.killed_line_mode import REPLY
from tests.app.fake_engine import FakeSession, Gate, Script
from tests.app.scripted_access import use_script

pytestmark = pytest.mark.slow

LONG = [["a", " reply", " of", " six", " words", " here"]]


@pytest.fixture
def script(monkeypatch):
    return use_script(monkeypatch, Script(replies=[["one", "."], ["two", "."], ["three", "."]]))


@pytest.fixture
def saving_script(script, monkeypatch):
    """Return a script that saves states and whose models share a vocabulary."""
    use_script(monkeypatch, with_one_vocabulary(script))
    monkeypatch.setattr(engine_access, "state_files", lambda settings: files())
    return script


def talk(script, monkeypatch, *lines, **settings):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return plain.chat("m.gguf", replace(built_in_settings(), **settings), script.clock)


def ask(script, prompt, name="notes", **settings):
    return run(
        RunOptions("m.gguf", prompt, session=name),
        replace(built_in_settings(), **settings),
        script.clock,
    )


def texts(conversation_id="000001"):
    return [message.text for message in Store().read(conversation_id).conversation.messages]


def cache_text(script):
    model = script.opened[-1]
    return model.tokenizer.decode(model.sessions[0].tokens)


# ---- jalopy run --session


def test_run_session_continues_a_conversation(script, capsys):
    assert ask(script, "first") == exit_codes.OK
    assert ask(script, "second") == exit_codes.OK
    assert texts() == ["first", "one.", "second", "two."]
    assert cache_text(script) == "firstone.secondtwo."
    assert Store().read("000001").title == "notes"


def test_a_number_is_matched_as_a_title_before_an_id(script, capsys):
    for prompt, name in (("first", "2"), ("second", "notes"), ("third", "2")):
        ask(script, prompt, name)
    assert texts("000001") == ["first", "one.", "third", "three."]
    assert texts("000002") == ["second", "two."]
    ask(script, "fourth", "000002")
    assert texts("000002")[2] == "fourth"
    ask(script, "fifth", "1")  # no conversation has this title
    assert texts("000001")[4] == "fifth"


def test_extra_white_space_in_a_title_is_ignored(script, capsys):
    for prompt, name in (
        ("first", " my  notes\n"),
        ("second", " my  notes\n"),
        ("third", "my notes"),
        ("fourth", " 1 "),
    ):
        ask(script, prompt, name)
    assert Store().ids() == ["000001"]
    assert texts()[::2] == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("name", ["", " \t\n"])
def test_a_session_without_a_name_is_refused(name, script):
    with pytest.raises(Refusal, match="--session is empty") as refused:
        ask(script, "first", name)
    assert refused.value.exit_code == exit_codes.USAGE
    assert script.opened == []


def test_a_full_context_drops_its_oldest_turns_in_the_shell_too(script, capsys):
    script.replies = LONG
    script.n_ctx = 100
    errors = []
    for n in range(9):
        assert (
            ask(script, f"question {n} of some words more", system_prompt="Be brief.")
            == exit_codes.OK
        )
        errors.append(capsys.readouterr().err)
    raise_disk_full = [err for err in errors if "The context was full" in err]
    assert raise_disk_full
    assert all(err.count("The context was full: the oldest") == 1 for err in raise_disk_full)
    conversation = Store().read("000001").conversation
    assert len(conversation.messages) == 18
    assert 0 < conversation.n_dropped < 18
    assert conversation.n_dropped % 2 == 0
    oldest_text = conversation.messages[conversation.n_dropped].text
    assert cache_text(script).startswith(f"Be brief.{oldest_text}")
    assert "question 0" not in cache_text(script)


@pytest.mark.smoke
def test_a_full_context_shifts_the_cache_instead_of_refilling(saving_script, capsys):
    script = saving_script
    script.replies = LONG
    script.n_ctx = 100
    for n in range(8):
        assert ask(script, f"question {n} of some words more") == exit_codes.OK
        err = capsys.readouterr().err
        if "The context was full" in err:
            break
    assert "tokens restored in" in err
    assert script.opened[-1].sessions[0].fed_counts[0] < 20
    assert "question 0" not in cache_text(script)


def test_a_message_beyond_the_context_is_refused_with_counts(script, capsys):
    script.n_ctx = 60
    ask(script, "first")
    texts_before = texts()
    with pytest.raises(
        Refusal,
        match=r"the message needs \d\d+ tokens with room for a reply, but the context holds 60",
    ) as refused:
        ask(script, "word " * 80)
    assert refused.value.exit_code == exit_codes.BAD_DATA
    assert texts() == texts_before
    ask(script, "second")
    assert texts() == [*texts_before, "second", "two."]
    assert Store().read("000001").conversation.n_dropped == 0


def test_missing_file_locks_are_reported_once(script, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    talk(script, monkeypatch, "first", "second", "/new", "third")
    assert capsys.readouterr().err.count("Files cannot be locked where") == 1
    assert (texts("000001")[0], texts("000002")[0]) == ("first", "third")
    assert ask(script, "fourth") == exit_codes.OK
    assert capsys.readouterr().err.count("Files cannot be locked where") == 1


def test_thinking_is_saved_apart(script, capsys):
    script.replies = [["<think>", "hm", "</think>", "Yes."]]
    script.control = frozenset({"<think>", "</think>"})
    ask(script, "why?")
    reply = Store().read("000001").conversation.messages[-1]
    assert reply.thinking is not None
    assert (reply.text, reply.thinking.text, reply.thinking.is_closed) == ("Yes.", "hm", True)
    assert reply.raw == "<think>hm</think>Yes."


def test_states_beyond_the_quota_are_deleted_at_the_end(saving_script, capsys):
    script = saving_script
    ask(script, "first", "one")
    earlier = kinds()[0] / f"{0:032}-9-{1:032}.kv"
    earlier.write_bytes(b"x" * (11 << 20))
    os.utime(earlier, (1e9, 1e9))
    ask(script, "second", "two", kv_states_quota_gb=0.01)
    assert not earlier.exists()
    assert all(path.exists() for path in Store().segments("000002"))


# ---- the line mode


def test_the_line_mode_resumes_and_names_the_conversation(script, monkeypatch, capsys):
    talk(script, monkeypatch, "first")
    assert "saved as conversation 1 (jalopy sessions lists all)" in capsys.readouterr().err
    talk(script, monkeypatch, "second")
    err = capsys.readouterr().err
    assert "conversation 1: first · 2 messages, from " in err
    assert "saved as" not in err
    assert texts() == ["first", "one.", "second", "two."]
    assert cache_text(script) == "firstone.secondtwo."


def test_a_template_refusal_does_not_end_the_line_mode(script, monkeypatch, capsys):
    talk(script, monkeypatch, "hello", "the refused one", "and on")
    script.refused_words = "refused"
    assert talk(script, monkeypatch, "more", "/new", "good day") == exit_codes.OK
    assert capsys.readouterr().err.count("the chat template fails") == 2, (
        "once at the start, once for the message"
    )
    assert texts()[-3:] == ["and on", "three.", "more"], "the message stays and can be sent again"
    assert texts("000002")[0] == "good day"


def test_the_line_mode_can_start_a_new_conversation(script, monkeypatch, capsys):
    talk(script, monkeypatch, "first")
    talk(script, monkeypatch, "second", resume="new")
    assert (texts("000001"), texts("000002")) == (["first", "one."], ["second", "two."])


def test_new_starts_another_conversation_but_system_does_not(script, monkeypatch, capsys):
    talk(script, monkeypatch, "first", "/new", "second", "/system Be kind.", "third")
    assert [texts(conversation_id)[0::2] for conversation_id in Store().ids()] == [
        ["first"],
        ["second", "third"],
    ]
    assert Store().read("000001").conversation.system is None
    assert Store().read("000002").conversation.system == "Be kind."
    assert capsys.readouterr().err.count("saved as conversation") == 2


def test_the_line_mode_can_run_without_saving(script, monkeypatch, capsys):
    talk(script, monkeypatch, "first", save_conversations="off")
    root = paths.conversations_dir()
    assert root is not None
    assert not root.exists()
    assert "saved as" not in capsys.readouterr().err


def test_a_message_is_on_disk_before_anything_is_computed(script, monkeypatch, capsys):
    texts_at_prefill = []
    original_prefill = FakeSession.prefill

    def prefill(self, *arguments, **options):
        texts_at_prefill.append(texts())
        return original_prefill(self, *arguments, **options)

    monkeypatch.setattr(FakeSession, "prefill", prefill)
    talk(script, monkeypatch, "first", "second")
    assert texts_at_prefill == [["first"], ["first", "one.", "second"]]


def test_the_cache_state_is_saved_and_restored(saving_script, monkeypatch, capsys):
    script = saving_script
    talk(script, monkeypatch, "first")
    tokens = script.opened[0].sessions[0].tokens
    (directory,) = kinds()
    assert saved_in(directory)[0] == tokens
    talk(script, monkeypatch, "second")
    assert f"{len(tokens)} tokens restored in 0.25 s" in capsys.readouterr().err
    assert script.opened[1].sessions[0].fed_counts[0] < 6


def test_an_unanswered_question_can_be_asked_after_a_restart(script, monkeypatch, capsys):
    script.fail_after_tokens = 0
    talk(script, monkeypatch, "why?")
    script.fail_after_tokens = None
    assert texts() == ["why?"]
    talk(script, monkeypatch, "/regen")
    assert (
        "not answered yet (/regen asks again, another message goes with it): why?"
        in capsys.readouterr().err
    )
    assert texts() == ["why?", "two."]


def test_a_full_context_drops_its_oldest_turns_in_the_line_mode(script, monkeypatch, capsys):
    script.replies = LONG
    questions = [f"question {n} of some words more" for n in range(14)]
    talk(script, monkeypatch, *questions, context_size=200, system_prompt="Be brief.")
    out, err = capsys.readouterr()
    assert out.count("a reply of six words here") == 14
    assert "tokens left. When it is full, the oldest turns are dropped" in err
    assert "The context was full: the oldest" in err
    session = script.opened[0].sessions[0]
    assert max(session.fed_counts[1:]) < 30, "the remaining tokens were moved, not fed again"
    assert 0 < Store().read("000001").conversation.n_dropped < 28


def test_a_second_line_mode_uses_a_copy_and_names_the_first(script, monkeypatch, capsys):
    talk(script, monkeypatch, "first")
    opened = Store().open("000001")
    talk(script, monkeypatch, "mine")
    assert opened.open_conversation is not None
    opened.open_conversation.close()
    err = capsys.readouterr().err
    assert f"in use by another jalopy (process {os.getpid()}, since " in err
    assert "saved as conversation 2" in err
    assert (texts("000001"), texts("000002")) == (
        ["first", "one."],
        ["first", "one.", "mine", "two."],
    )


def test_an_unsaved_conversation_is_reported_with_exit_code_74(script, monkeypatch, capsys):
    def raise_disk_full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(OpenConversation, "apply", raise_disk_full)
    assert talk(script, monkeypatch, "first", "second") == exit_codes.IO_ERROR
    out, err = capsys.readouterr()
    assert out == "one.\ntwo.\n"
    assert err.count("conversation not saved: the disk is full. It goes on here") == 1
    assert "saved as conversation" not in err
    assert err.rstrip().endswith("conversation not saved: the disk is full")


class _Listener(io.StringIO):
    """Standard error that lets the reply continue when an expected text is written."""

    def __init__(self, awaited, gate):
        super().__init__()
        self.awaited = awaited
        self.gate = gate
        self.has_heard = False

    def write(self, text):
        if self.awaited in text:
            self.has_heard = True
            self.gate.open()
        return super().write(text)


@pytest.mark.parametrize("is_emptied", [True, False])
def test_run_reports_a_full_disk_during_the_reply(script, monkeypatch, is_emptied):
    ask(script, "first")
    apply = OpenConversation.apply
    script.token_gate = Gate()
    warning = "conversation not saved: the disk is full. Jalopy keeps trying"
    err = _Listener(warning, script.token_gate)

    def raise_disk_full(open_conversation, *changes, **options):
        if is_emptied and err.has_heard:
            return apply(open_conversation, *changes, **options)
        raise StoreError("the disk is full")

    monkeypatch.setattr(OpenConversation, "apply", raise_disk_full)
    monkeypatch.setattr(sys, "stderr", err)
    assert ask(script, "second") == (exit_codes.OK if is_emptied else exit_codes.IO_ERROR)
    assert err.getvalue().count(warning) == 1
    last_line = (
        "the conversation is saved now"
        if is_emptied
        else "conversation not saved: the disk is full"
    )
    assert err.getvalue().rstrip().endswith(last_line)
    assert (texts() == ["first", "one.", "second", "two."]) == is_emptied


def test_a_full_disk_does_not_delay_every_message(script, monkeypatch, capsys):
    def raise_disk_full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(OpenConversation, "apply", raise_disk_full)
    monkeypatch.setattr(SaverThread, "close", lambda keeper, _: not keeper.has_unsaved)
    monkeypatch.setattr(talks, "SAVING_PATIENCE_S", 3600.0)
    talk(script, monkeypatch, "first", "second")
    assert capsys.readouterr().out == "one.\ntwo.\n"


class _SavedRepliesReader(io.StringIO):
    """Standard output whose reader looks at the saved texts when each reply ends."""

    def __init__(self):
        super().__init__()
        self.saved_replies = []

    def write(self, text):
        if text.endswith("\n"):
            messages = Store().read("000001").conversation.messages
            answers = [message for message in messages if message.role is Role.ASSISTANT]
            self.saved_replies.append([(answer.text, answer.ending) for answer in answers])
        return super().write(text)


@pytest.mark.parametrize(
    "speak", [talk, lambda script, _, *lines: [ask(script, line) for line in lines]]
)
def test_an_answer_is_saved_before_its_end_is_shown(script, monkeypatch, speak):
    reader = _SavedRepliesReader()
    monkeypatch.setattr(sys, "stdout", reader)
    speak(script, monkeypatch, "first", "second")
    first = ("one.", Ending.COMPLETE)
    second = ("two.", Ending.COMPLETE)
    assert reader.saved_replies == [[first], [first, second]]
    assert reader.getvalue() == "one.\ntwo.\n"


class _SavedPiecesReader(io.StringIO):
    """Standard output that records for each piece whether all shown text is already on disk."""

    def __init__(self):
        super().__init__()
        self.missing = []

    def write(self, text):
        written = super().write(text)
        on_disk = Store().read("000001").conversation.messages[-1]
        if on_disk.role is not Role.ASSISTANT or not on_disk.text.startswith(
            self.getvalue().rstrip("\n")
        ):
            self.missing.append((self.getvalue(), on_disk.text))
        return written


@pytest.mark.parametrize(
    "speak", [talk, lambda script, _, *lines: [ask(script, line) for line in lines]]
)
def test_no_piece_is_shown_before_it_is_on_disk(script, monkeypatch, speak):
    script.replies = [["one ", "two ", "three ", "four"]]
    reader = _SavedPiecesReader()
    monkeypatch.setattr(sys, "stdout", reader)
    monkeypatch.setattr(talks, "LEAST_SAVED_APART_S", 0.0)
    speak(script, monkeypatch, "first")
    assert reader.getvalue() == "one two three four\n"
    assert reader.missing == []


# ---- killed


def start(*halts_after):
    command = [
        sys.executable,
        "-m",
        "tests.app.conversations.killed_line_mode",
        "m.gguf",
        *halts_after,
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **pipes)


def end(process, number):
    process.send_signal(number)
    written = process.stdout.read()
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    return written, code


def test_a_kill_loses_no_sent_message_and_no_shown_text():
    n_sent = 0
    n_answers = 0
    generator = random.Random(5)
    for _ in range(2):
        process = start()
        for _ in range(40):
            process.stdin.write(f"question {n_sent}\n".encode())
            n_sent += 1
        process.stdin.flush()
        written = process.stdout.readline()  # one reply is complete
        time.sleep(generator.uniform(0, 0.3))
        remaining_output, code = end(process, signal.SIGKILL)
        assert code == -signal.SIGKILL
        n_complete = (written + remaining_output).count(b"\n")
        n_answers += n_complete
        messages = Store().read("000001").conversation.messages
        complete_replies = [
            message
            for message in messages
            if message.text == "".join(REPLY) and message.ending is Ending.COMPLETE
        ]
        assert len(complete_replies) >= n_answers, (
            "every reply that was shown whole is whole on the disk"
        )
        partial_reply = (written + remaining_output).decode().rpartition("\n")[2]
        assert not partial_reply or messages[-1].text.startswith(partial_reply), (
            "the shown beginning of the next reply is on the disk, too"
        )
        n_answers = len(complete_replies)


@pytest.fixture
def unanswered():
    """Save a conversation as a kill before the first token of a reply leaves it."""
    journal = Journal(Store())
    conversation = Conversation()
    journal.set_model("m", model_key("m.gguf"))
    conversation.add_user("why?")
    journal.save_question(conversation, is_replacing=False)
    assert journal.close(60) == ""


BOTH = "the message before was not answered: both are sent together"


@pytest.mark.parametrize(
    "speak", [talk, lambda script, _, *lines: [ask(script, line, "1") for line in lines]]
)
def test_an_unanswered_message_is_sent_with_the_next_one(
    unanswered, speak, script, monkeypatch, capsys
):
    speak(script, monkeypatch, "and how?", "and when?")
    assert texts() == ["why?\n\nand how?", "one.", "and when?", "two."]
    assert capsys.readouterr().err.count(BOTH) == 1
    assert cache_text(script) == "why?\n\nand how?one.and when?two."


def test_an_unanswered_message_can_be_sent_again_alone(unanswered, script, monkeypatch, capsys):
    talk(script, monkeypatch, "/regen", "and how?")
    assert texts() == ["why?", "one.", "and how?", "two."]
    assert BOTH not in capsys.readouterr().err


def test_two_messages_too_long_together_are_not_both_sent(script, capsys):
    script.n_ctx = 60
    script.fail_after_tokens = 0
    with pytest.raises(BrokenModelError):
        ask(script, "more " * 25)
    assert texts() == ["more " * 25]
    script.fail_after_tokens = None
    ask(script, "word " * 35)
    err = capsys.readouterr().err
    assert "is left out: both together do not fit the context" in err
    assert BOTH not in err
    assert texts() == ["word " * 35, "two."]


def test_a_refused_first_message_leaves_no_named_conversation(script, capsys):
    script.n_ctx = 60
    with pytest.raises(Refusal, match="but the context holds 60"):
        ask(script, "word " * 80)
    assert Store().ids() == []
    ask(script, "short")
    with pytest.raises(Refusal, match="but the context holds 60"):
        ask(script, "word " * 80)
    assert texts(*Store().ids()) == ["short", "one."]


def test_the_first_message_stays_if_the_next_never_fits(script, capsys):
    script.n_ctx = 60
    script.fail_after_tokens = 0
    with pytest.raises(BrokenModelError):
        ask(script, "more " * 25)
    script.fail_after_tokens = None
    with pytest.raises(Refusal, match="but the context holds 60"):
        ask(script, "word " * 80)
    assert BOTH not in capsys.readouterr().err
    assert texts() == ["more " * 25]
    ask(script, "and so?")
    assert texts() == ["more " * 25 + "\n\nand so?", "two."]


def test_messages_queued_in_a_killed_chat_stay_for_the_chat(script, monkeypatch, capsys):
    journal = Journal(Store())
    conversation = Conversation()
    journal.begin(title="notes")
    conversation.add_user("first")
    journal.save_question(conversation, is_replacing=False)
    journal.save_queue(conversation, ["later", "last"])
    assert journal.close(60) == ""
    ask(script, "second")
    assert Store().read("000001").queued_texts == ["later", "last"]
    talk(script, monkeypatch, "third", "later", "fourth")
    assert "queued, but not sent before Jalopy closed: later" in capsys.readouterr().err
    assert Store().read("000001").queued_texts == ["last"]


def test_a_signal_saves_the_partial_reply():
    process = start("2")
    process.stdin.write(b"why?\n")
    process.stdin.flush()
    first_output = process.stdout.read(len("one two"))
    remaining_output, code = end(process, signal.SIGTERM)
    assert code == exit_codes.TERMINATED
    reply = Store().read("000001").conversation.messages[-1]
    assert reply.ending in (Ending.INTERRUPTED, Ending.STOPPED)
    assert reply.text.startswith((first_output + remaining_output).decode().rstrip("\n"))

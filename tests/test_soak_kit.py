"""The long run's own kit: plans repeat, and every check fails on what it is there to find."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from app.conversations.conversation import Ending
from app.conversations.database import NAME
from app.conversations.journal import Journal
from app.conversations.store import Store
from tests.programs.soak import texts
from tests.programs.soak.__main__ import STEPS
from tests.programs.soak.chat import Chat, Failed
from tests.programs.soak.ledger import Fate, Ledger, read_all
from tests.programs.soak.plan import ENDINGS, LONG_LIFE, WEIGHTS, long_life, plan
from tests.programs.soak.samples import LEAST_FOR_MEMORY, Sample, growth, memory_slope, verdict
from tests.programs.soak.screen import Screen
from tests.programs.soak.view import View, is_seen_in, letters

MIB = 1 << 20


# ---- plans


def test_a_plan_repeats_by_its_seed_and_does_everything():
    first, again, different = (list(islice(plan(seed), 2000)) for seed in (7, 7, 8))
    assert first == again
    assert first != different
    assert {step.kind for step in first} == STEPS.keys() == {*WEIGHTS, *ENDINGS}
    assert [step.number for step in first] == list(range(2000))


def test_what_a_step_does_depends_on_no_step_before_it():
    step = next(islice(plan(7), 100, None))
    words = [texts.short(texts.marker_of(1), step.rng()) for _ in range(2)]
    assert words[0] == words[1]
    assert step.rng().random() != next(islice(plan(7), 101, None)).rng().random()


# ---- what is saved


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a conversation of two questions and two replies."""
    from app.conversations.conversation import Conversation

    store = Store(tmp_path / "conversations")
    journal = Journal(store)
    conversation = Conversation()
    for number in (1, 2):
        conversation.add_user(f"mk{number} question")
        journal.save_question(conversation, is_replacing=False)
        conversation.add_reply(f"reply {number} in **words**", Ending.COMPLETE, None)
        journal.save_turn_end(conversation)
    assert journal.close(60.0) == ""
    return store


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger of the messages that were seen."""
    ledger = Ledger()
    for number in (1, 2):
        message = ledger.note(f"mk{number}", f"mk{number} question", Fate.ANSWERED)
        message.reply = letters(f"reply {number} in words")
    return ledger


def test_what_was_seen_is_found(store: Store, ledger: Ledger):
    assert ledger.check(read_all(store)) == []


def change(store: Store, sql: str) -> None:
    assert store.root is not None
    with closing(sqlite3.connect(store.root / NAME)) as db, db:
        db.execute(sql)


def test_a_lost_message_is_found(store: Store, ledger: Ledger):
    change(store, "DELETE FROM message WHERE place>=2")
    assert ["lost: mk2" in trouble for trouble in ledger.check(read_all(store))] == [True]
    ledger.replace(["mk2"])
    assert ledger.check(read_all(store)) == []


def test_a_lost_reply_is_found(store: Store, ledger: Ledger):
    change(store, "DELETE FROM message WHERE place=3")
    assert ["the reply to mk2 is lost" in trouble for trouble in ledger.check(read_all(store))] == [
        True
    ]


def test_a_reply_that_says_something_else_is_found(store: Store, ledger: Ledger):
    ledger.said["mk1"].reply = letters("reply 1 in other words")
    assert ["was seen as" in trouble for trouble in ledger.check(read_all(store))] == [True]


def test_what_is_said_twice_is_found(store: Store, ledger: Ledger):
    change(store, "INSERT INTO conversation(id) VALUES(2)")
    columns = "place, role, tokens, n_bytes, text, more"
    change(store, f"INSERT INTO message(conversation, {columns}) SELECT 2, {columns} FROM message")
    troubles = ledger.check(read_all(store))
    assert len(troubles) == 2
    assert all("said in 2 conversations" in trouble for trouble in troubles)


def test_a_conversation_that_cannot_be_read_is_found(store: Store, ledger: Ledger):
    change(store, "UPDATE message SET place=1000000 WHERE place=3")
    assert any("cannot be read" in trouble for trouble in ledger.check(read_all(store)))


def test_a_deleted_conversation_excuses_only_its_own_messages(store: Store, ledger: Ledger):
    ledger.note("mk3", "mk3 elsewhere")
    saved_then = read_all(store)
    store.delete("000001")
    saved_now = read_all(store)
    ledger.forget_deleted("000001", saved_then, saved_now)
    assert ["lost: mk3" in trouble for trouble in ledger.check(saved_now)] == [True]
    assert [message.why_gone for message in ledger.said.values()] == [
        "deleted with their conversation"
    ] * 2 + [""]


def test_a_message_joined_with_an_unanswered_one_goes_whole(store, ledger):
    from app.conversations.conversation import Conversation

    journal = Journal(store)
    conversation = Conversation()
    conversation.add_user("mk3 question\n\nmk4 question")
    journal.save_question(conversation, is_replacing=False)
    conversation.add_reply("reply", Ending.COMPLETE, None)
    journal.save_turn_end(conversation)
    assert journal.close(60.0) == ""
    for marker in ("mk3", "mk4"):
        ledger.note(marker, f"{marker} question", Fate.ANSWERED)
    saved_then = read_all(store)
    store.delete("000002")
    saved_now = read_all(store)
    ledger.forget_deleted("000002", saved_then, saved_now)
    assert ledger.check(saved_now) == []
    assert [bool(message.why_gone) for message in ledger.said.values()] == [
        False,
        False,
        True,
        True,
    ]


def test_painted_letters_are_compared_in_their_order():
    assert is_seen_in("twowords", "**two** words, and more")
    assert is_seen_in("ashownlink", "a [shown](https://example.org) link")
    assert not is_seen_in("wordstwo", "two words")
    assert not is_seen_in("linkshowna", "a [shown](https://example.org) link")


# ---- what a process holds


def _life(
    mib_a_step: float = 0.0, descriptors_a_step: float = 0.0, threads_a_step: float = 0.0
) -> list[Sample]:
    noise = Random(1)
    return [
        Sample(n, 0, int((100 + n * mib_a_step + noise.uniform(0, 5)) * MIB),
               int(10 + n * descriptors_a_step),
               int(5 + n * threads_a_step), 0)
        for n in range(2 * LEAST_FOR_MEMORY)
    ]  # fmt: skip


def test_a_process_that_grows_is_found_and_a_steady_one_is_not():
    assert growth(_life()) == []
    assert ["memory" in trouble for trouble in growth(_life(mib_a_step=0.2))] == [True]
    assert ["descriptors" in trouble for trouble in growth(_life(descriptors_a_step=0.1))] == [True]
    assert ["threads" in trouble for trouble in growth(_life(threads_a_step=0.15))] == [True]


def _memory(mib_of_step: Callable[[int], float], n_steps: int = 300) -> list[Sample]:
    return [Sample(n, 0, round(mib_of_step(n) * MIB), 12, 9, 0) for n in range(n_steps)]


def _allocator_mib(step: int) -> float:
    """Return memory as an allocator grows it: a new peak at each power of 1.3, so ever more rarely."""
    return 105 + 10 * int(math.log(step + 1, 1.3)) * 0.3


def test_peaks_that_an_allocator_keeps_are_no_leak():
    assert growth(_memory(_allocator_mib)) == []
    assert growth(_memory(lambda step: 165.0 if step > 250 else 105.0)) == []
    assert growth(_memory(lambda step: 105 + 60 * min(1.0, step / 100))) == []


def test_a_leak_of_a_turns_size_is_found_next_to_allocator_noise():
    assert [
        "memory" in trouble
        for trouble in growth(_memory(lambda step: _allocator_mib(step) + 0.1 * step))
    ] == [True]
    assert [
        "memory" in trouble
        for trouble in growth(_memory(lambda step: _allocator_mib(step) + 8 * (step // 25)))
    ] == [True]


def test_memory_of_a_short_life_is_not_judged():
    assert memory_slope(_memory(float, LEAST_FOR_MEMORY - 1)) is None
    assert memory_slope(_memory(float, LEAST_FOR_MEMORY)) == pytest.approx(100)


# ---- the terminal

_PROGRAM = "import os, sys, time, tty; {act}"


@pytest.fixture
def chats(tmp_path: Path):
    """Start programs in place of the chat."""
    started: list[Chat] = []

    def start(act: str) -> Chat:
        started.append(
            Chat([sys.executable, "-c", _PROGRAM.format(act=act)], {"PATH": ""}, tmp_path, (80, 24))
        )
        return started[-1]

    yield start
    for chat in started:
        chat.close()


def test_a_program_that_leaves_its_modes_is_found(chats):
    chat = chats("tty.setraw(0); os.write(1, b'\\x1b[?1049h\\x1b[?2004h\\x1b[?25l\\x1b[>1u')")
    assert chat.wait_for_end() == 0
    assert chat.leaves_undone() == [
        "mode 1049 is on", "mode 2004 is on", "mode 25 is off",
        "the line's modes are others than before",
    ]  # fmt: skip


def test_a_program_that_puts_everything_back_is_sound(chats):
    chat = chats(
        "os.write(1, b'\\x1b[?1049h\\x1b[>1u\\x1b[?25l\\x1b[<u\\x1b[?1049l\\x1b[?25h'); sys.exit(3)"
    )
    assert chat.wait_for_end() == 3
    assert chat.leaves_undone() == []
    assert chat.left_behind() == []


def test_a_traceback_on_the_terminal_is_found_however_it_is_cut(chats):
    act = (
        "os.write(1, b'Traceback (most rec'); os.read(0, 1); os.write(1, b'ent call last)'); "
        "time.sleep(600)"
    )
    # the rest comes when it is told to: found earlier, it would end the start
    chat = chats(f"tty.setraw(0); {act}")
    chat.wait_for(lambda: b"most rec" in chat.output_tail, "the first piece")
    chat.press("x")
    with pytest.raises(Failed, match="Traceback"):
        chat.wait_for(lambda: False, "nothing")


def test_a_child_that_is_left_is_found(chats):
    chat = chats("os.fork() or time.sleep(600); os.read(0, 1)")
    child = chat.child
    chat.note_family()
    chat.press("\n")
    chat.wait_for_end()
    assert [process.pid for process in chat.left_behind()] == [child.pid]


# ---- the screen


def test_the_screen_takes_output_cut_anywhere():
    output = (
        "\x1b[?1049h\x1b[2J\x1b[2;3H日本\x1b[1mx\x1b[0m\x1b[1;1Hold\x1b[K\x1b]0;title\x07".encode()
    )
    for size in (1, 2, 5, 1000):
        screen = Screen(20, 3)
        for start in range(0, len(output), size):
            screen.feed(output[start : start + size])
        assert screen.rows() == ["old", "  日本x", ""]


PAINTED = """\
 jalopy                                                          model · Q4_K_M
 you    mk000001q question

 model  Some words of a reply, 31 tokens in all,
        and more.

        31 tokens · 2.0 tok/s · first word after 1.9 s · stopped · /continue goes on ·
        14 read · 3 cached

        a note of 5 tokens
╭─ Enter sends · ctrl+j new line · / commands ─────────────────────────────────╮
│ Type here                                                                    │
╰────── F1 help · F2 speed · F3 models · F4 tune · F5 doctor · ctrl+p palette ─╯
  2.0 tok/s │ 2 threads │ mem 118M │ ctx █▓▒░░░░░ 29 % │ ready"""


def test_the_painted_chat_is_understood():
    view = View(PAINTED.split("\n"))
    assert view.is_home
    assert view.last_reply is not None
    assert view.last_reply.n_tokens == 31
    assert view.last_reply.reply_letters == "Somewordsofareply31tokensinallandmore"
    wide = [
        row if row[:1] in "╭│╰" else " " * 45 + row
        for row in PAINTED.replace("Enter", "─" * 121 + " Enter").split("\n")
    ]
    assert [block.text for block in View(wide).blocks] == [block.text for block in view.blocks]
    assert not View(PAINTED.replace("ctrl+p palette", "Esc stops the reply").split("\n")).is_home
    assert not View(PAINTED.replace("Type here", "text here").split("\n")).is_home
    assert not View(PAINTED.replace("  2.0 tok/s │ 2", " reading 5 % │ 2").split("\n")).is_free


def test_a_long_life_yields_the_same_steps_and_no_ending():
    first, again = (list(islice(long_life(7), 500)) for _ in range(2))
    assert first == again
    assert {step.kind for step in first} == LONG_LIFE.keys()
    assert not LONG_LIFE.keys() & {*ENDINGS, "suspend", "full_disk"}
    assert {"regenerate", "switch_model", "search", "open_document"} <= LONG_LIFE.keys()


@pytest.mark.parametrize(
    "name", ["n_descriptors", "n_threads", "n_children", "n_maps", "anonymous_bytes"]
)
def test_a_long_life_that_grows_is_not_flat(name: str):
    a_step = {"anonymous_bytes": MIB // 4}.get(name, 0.5)
    grown = [replace(_look(n), **{name: int(a_step * n)}) for n in range(400)]
    flat = [_look(n) for n in range(400)]
    early = [replace(_look(n), **{name: int(a_step * min(n, 100))}) for n in range(400)]
    assert len(verdict(grown)) == 1
    assert verdict(flat) == verdict(early) == []
    with pytest.raises(ValueError, match="are needed"):
        verdict(flat[:100])


def _look(number: int) -> Sample:
    return Sample(number, 0, 100 * MIB, 12, 9, 1, 300, 6.0 * number)

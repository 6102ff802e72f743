"""Damaged logs: every sound line is read, what is missing is said, and no two things stand together that never did."""

import random

import pytest

from app.conversations import log_file
from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.journal import Partial
from app.conversations.log_file import read_log
from app.conversations.records import checksum_of, read_record, write_record
from app.conversations.store import LOG_NAME, Store
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk, texts_in


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "conversations"


@pytest.fixture
def log(root):
    saved_talk(root)
    return root / "000001" / LOG_NAME


def lines_of(log):
    return log.read_bytes().splitlines(keepends=True)


def kinds_of(lines):
    return [read_record(line[:-1])["k"] for line in lines]


def broken(line):
    """The line with one bit in its middle flipped."""
    at = len(line) // 2
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def break_lines(log, *places):
    lines = lines_of(log)
    log.write_bytes(b"".join(broken(line) if n in places else line for n, line in enumerate(lines)))


def context(conversation):
    """Messages that go to the model."""
    return conversation.messages[conversation.n_dropped :]


def open_and_close(root):
    opened = Store(root).open("000001")
    assert opened.log is not None
    opened.log.close()
    return opened


def go_on(root):
    """One more turn in a process that comes next; returns what was there before it."""
    made, opened = journal(root), Store(root).open("000001")
    assert opened.log is not None
    before = [message.text for message in opened.saved.conversation.messages]
    made.adopt(opened)
    ask(made, opened.saved.conversation, "and now?")
    answer(made, opened.saved.conversation, "now it goes on")
    assert made.close(PATIENCE_S) == ""
    return before


def test_a_line_of_a_reply_that_is_there_whole_is_no_loss(root, log):
    texts, kinds = texts_in(root), kinds_of(lines_of(log))
    for n in (n for n, kind in enumerate(kinds) if kind in ("part", "model", "title")):
        content = log.read_bytes()
        break_lines(log, n)
        opened = open_and_close(root)
        assert [m.text for m in opened.saved.conversation.messages] == texts
        assert opened.saved.conversation.n_dropped == 0
        assert opened.notice == "1 line of its file is damaged: no message is missing"
        log.write_bytes(content)


def test_what_stands_behind_a_lost_question_is_read_and_the_model_goes_on_behind_it(root, log):
    texts, kinds = texts_in(root), kinds_of(lines_of(log))
    break_lines(log, kinds.index("say", kinds.index("reply")))
    damaged = log.read_bytes()
    opened = open_and_close(root)
    conversation = opened.saved.conversation
    assert [m.text for m in conversation.messages] == [*texts[:2], "", *texts[3:]]
    assert [m.is_missing for m in conversation.messages] == [False, False, True, False, False, False]
    assert [m.text for m in context(conversation)] == texts[4:]
    assert "what was said between messages 2 and 3 is missing, the model goes on behind that" in opened.notice
    assert log.read_bytes() == damaged, "nothing is taken away from it"
    assert not list(log.parent.glob("*.corrupt"))


def test_a_lost_reply_leaves_a_gap_on_its_side(root, log):
    texts, kinds = texts_in(root), kinds_of(lines_of(log))
    break_lines(log, *(n for n, kind in enumerate(kinds[: kinds.index("reply") + 1]) if kind in ("part", "reply")))
    conversation = open_and_close(root).saved.conversation
    assert [(m.role, m.text) for m in conversation.messages[:3]] == [
        (Role.USER, texts[0]),
        (Role.ASSISTANT, ""),
        (Role.USER, texts[2]),
    ]
    assert [m.text for m in context(conversation)] == texts[2:]


def test_a_hole_in_a_reply_that_was_cut_off_is_not_closed(root):
    made, conversation = journal(root), Conversation()
    ask(made, conversation, "count")
    for n in range(1, 5):
        text = " ".join(str(one) for one in range(n))
        made.flush(conversation, Partial(text, "", tuple(range(n)), text))
    assert made.close(PATIENCE_S) == ""
    log = root / "000001" / LOG_NAME
    kinds = kinds_of(lines_of(log))
    break_lines(log, [n for n, kind in enumerate(kinds) if kind == "part"][2])
    reply = open_and_close(root).saved.conversation.messages[-1]
    assert (reply.text, reply.ids, reply.ending) == ("0 1", (0, 1), Ending.INTERRUPTED)
    assert go_on(root) == ["count", "0 1"]
    assert texts_in(root) == ["count", "0 1", "and now?", "now it goes on"]


def test_a_lost_end_is_still_told_when_the_conversation_has_gone_on(root, log):
    texts = texts_in(root)
    with log.open("ab") as file:
        file.write(b"00000000 {}\n")
    expected = "1 line of its file is damaged: what was said behind message 6 is missing"
    assert open_and_close(root).notice == expected
    assert go_on(root) == texts
    opened = open_and_close(root)
    assert opened.notice == "1 line of its file is damaged: what was said between messages 6 and 7 is missing"
    assert [m.text for m in context(opened.saved.conversation)] == [*texts, "and now?", "now it goes on"]


def test_a_log_without_its_beginning_is_read_and_says_so(root, log):
    texts = texts_in(root)
    for content in (b"".join(lines_of(log)[1:]), b"".join([broken(lines_of(log)[0]), *lines_of(log)[1:]])):
        log.write_bytes(content)
        opened = open_and_close(root)
        assert [m.text for m in opened.saved.conversation.messages] == texts
        assert opened.notice.endswith("the system prompt is missing")
        assert go_on(root) == texts
        assert texts_in(root) == [*texts, "and now?", "now it goes on"]


def test_a_log_of_a_version_that_knew_no_links_is_read_as_far_as_that_is_sure(root, log):
    old = old_lines(lines_of(log))
    texts, kinds = texts_in(root), kinds_of(old)
    log.write_bytes(b"".join(old))
    assert go_on(root) == texts
    for n, kind in enumerate(kinds):
        log.write_bytes(b"".join(broken(line) if n == at else line for at, line in enumerate(old)))
        conversation = open_and_close(root).saved.conversation
        there = [m.text for m in conversation.messages if not m.is_missing]
        partial = [text for text in there if text not in texts]
        assert all(any(text.startswith(one) for text in texts) for one in partial)
        assert len(there) >= len(texts) - (kind in ("say", "reply"))
        told = [m.text for m in context(conversation)]
        assert told == texts[len(texts) - len(told) :] or kind in ("reply", "title")
        before = [m.text for m in conversation.messages]
        assert go_on(root) == before
        assert texts_in(root) == [*before, "and now?", "now it goes on"]


def test_a_copy_of_a_damaged_conversation_knows_what_is_missing(root, log):
    kinds = kinds_of(lines_of(log))
    break_lines(log, kinds.index("say", kinds.index("reply")))
    conversation = Store(root).read("000001").conversation
    made = journal(root)
    made.begin("000001")
    ask(made, conversation, "in the copy")
    assert made.close(PATIENCE_S) == ""
    copy = Store(root).read("000002").conversation
    assert [m.is_missing for m in copy.messages] == [False, False, True, False, False, False, False]
    assert copy.n_dropped == 4


def old_lines(lines):
    """As versions wrote them that knew no links."""
    records = [read_record(line[:-1]) for line in lines]
    gone = [("on", "after") if record["k"] == "part" else ("on",) for record in records]
    return [
        write_record({name: value for name, value in record.items() if name not in names})
        for record, names in zip(records, gone, strict=True)
    ]


def shown(root):
    return [m.text for m in open_and_close(root).saved.conversation.messages if not m.is_missing]


@pytest.mark.parametrize("is_old", [False, True])
def test_behind_a_gap_a_number_of_messages_takes_none_away_that_it_did_not_mean(root, is_old):
    made, conversation = journal(root), Conversation()
    for n in range(4):
        ask(made, conversation, f"question {n}")
        answer(made, conversation, f"answer {n}")
    conversation.cut(6)
    conversation.add_user("edited")
    made.note_asked(conversation, is_replacing=True)
    answer(made, conversation, "answer to that")
    assert made.close(PATIENCE_S) == ""
    log = root / "000001" / LOG_NAME
    lines = old_lines(lines_of(log)) if is_old else lines_of(log)
    log.write_bytes(b"".join(lines))
    break_lines(log, kinds_of(lines).index("reply"))  # its parts are there, so nothing may be missing
    messages = open_and_close(root).saved.conversation.messages
    at = next(n for n, message in enumerate(messages) if message.text == "edited")
    assert messages[at - 1].is_missing or messages[at - 1].text == "answer 2"
    assert messages[at + 1].text == "answer to that"


def test_an_edited_first_message_is_known_even_behind_damage(root, log):
    made, conversation = journal(root), Conversation()
    made.adopt(Store(root).open("000001"))
    conversation.add_user("edited")
    made.note_asked(conversation, is_replacing=True)
    answer(made, conversation, "answer to that")
    assert made.close(PATIENCE_S) == ""
    log.write_bytes(b"".join(old_lines(lines_of(log))))
    break_lines(log, 2)
    assert shown(root) == ["edited", "answer to that"]


def test_a_question_that_is_lost_and_awaits_another_reply_is_still_told(root, log):
    made, opened = journal(root), Store(root).open("000001")
    conversation = opened.saved.conversation
    made.adopt(opened)
    conversation.drop_reply()
    made.note_asked(conversation, is_replacing=True)
    made.flush(conversation, Partial("x", "", (1,), "x"))
    assert made.close(PATIENCE_S) == ""
    kinds = kinds_of(lines_of(log))
    break_lines(log, max(n for n, kind in enumerate(kinds) if kind == "say"), kinds.index("keep") + 1)
    opened = open_and_close(root)
    assert opened.saved.conversation.unanswered is None
    assert "what was said behind message 4 is missing" in opened.notice
    before = shown(root)
    go_on(root)
    assert texts_in(root) == [*before, "and now?", "now it goes on"]
    assert "what was said between messages 4 and 5 is missing" in open_and_close(root).notice


def test_parts_of_two_answers_to_one_question_are_never_joined(root):
    made, conversation = journal(root), Conversation()
    ask(made, conversation, "count")
    for words in (["one ", "two "], ["six ", "ten "]):
        for n in (1, 2):
            text = "".join(words[:n])
            made.flush(conversation, Partial(text, "", tuple(range(n)), text))
        if words[0] == "one ":
            conversation.add_reply("one two ", Ending.STOPPED, None)
            made.note_settled(conversation)
            conversation.drop_reply()
            made.note_asked(conversation, is_replacing=True)
    assert made.close(PATIENCE_S) == ""
    log = root / "000001" / LOG_NAME
    kinds = kinds_of(lines_of(log))
    parts = [n for n, kind in enumerate(kinds) if kind == "part"]
    for is_traced in (True, False):
        whole = log.read_bytes()
        lost = range(parts[0] + 1, parts[-1])
        if is_traced:
            break_lines(log, *lost)
        else:
            log.write_bytes(b"".join(line for n, line in enumerate(lines_of(log)) if n not in lost))
        assert shown(root) == ["count", "one "]
        log.write_bytes(whole)


def test_a_part_of_an_older_version_is_not_put_beside_a_reply_that_nobody_asked_for(root, log):
    lines = lines_of(log)
    kinds = kinds_of(lines)
    last = max(n for n, kind in enumerate(kinds) if kind == "part")
    old = old_lines(lines)[kinds.index("part")]
    log.write_bytes(b"".join([*lines[: last + 1], old]))
    opened = open_and_close(root)
    assert [m.role for m in opened.saved.conversation.messages] == [Role.USER, Role.ASSISTANT] * 3
    assert opened.notice.startswith("1 line of its file is damaged")


def test_what_is_damaged_all_over_is_set_aside(root, log):
    texts = texts_in(root)
    whole = log.read_bytes()
    log.write_bytes(whole + b"\n" * (log_file.MOST_DAMAGED_LINES + 1))
    opened = open_and_close(root)
    assert [m.text for m in opened.saved.conversation.messages] == texts
    assert "a copy is in" in opened.notice
    assert log.read_bytes() == whole
    assert go_on(root) == texts


def test_records_behind_unknown_ones_are_told_in_one_short_line_and_soon():
    head = write_record({"k": "head", "format": "jalopy conversation", "version": 1, "at": "", "system": None})
    lines = [write_record({"k": "say", "text": f"{n}", "on": 7 * n + 1}) for n in range(20_000)]
    found = read_log(head + b"".join(lines))
    assert len(found.saved.conversation.messages) == 40_001
    assert len(found.damage) < 300
    assert len(context(found.saved.conversation)) == 1


# ---- at random


class History:
    """A conversation with edits and second answers, and every state that it ever had."""

    def __init__(self, root, chance):
        self.made, self.conversation, self.chance = journal(root), Conversation("Be brief."), chance
        self.states, self.n = [], 0

    def live(self, n_steps):
        for _ in range(n_steps):
            steps = [self.turn, self.turn, self.turn]
            if len(self.conversation.messages) > 1:
                steps += [self.again, self.edit, self.drop, self.cut_off]
            self.chance.choice(steps)()
        assert self.made.close(PATIENCE_S) == ""

    def _text(self, kind):
        self.n += 1
        return f"{kind} number {self.n} with some words"

    def _note(self):
        self.states.append([message.text for message in self.conversation.messages])

    def turn(self):
        ask(self.made, self.conversation, self._text("question"))
        self._note()
        answer(self.made, self.conversation, self._text("answer"))
        self._note()

    def again(self):
        self.conversation.drop_reply()
        self.made.note_asked(self.conversation, is_replacing=True)
        answer(self.made, self.conversation, self._text("answer"))
        self._note()

    def edit(self):
        at = self.chance.randrange(self.conversation.n_dropped, len(self.conversation.messages), 2)
        self.conversation.cut(at)
        self.conversation.add_user(self._text("edited"))
        self.made.note_asked(self.conversation, is_replacing=True)
        answer(self.made, self.conversation, self._text("answer"))
        self._note()

    def drop(self):
        if self.conversation.n_dropped + 2 < len(self.conversation.messages):
            self.conversation.n_dropped += 2
            self.made.note_dropped(self.conversation)

    def cut_off(self):
        """A reply of which only parts came."""
        ask(self.made, self.conversation, self._text("question"))
        self._note()
        text = self._text("answer")
        self.made.flush(self.conversation, Partial(text[:7], "", (1,), text[:7]))
        self.made.flush(self.conversation, Partial(text, "", (1, 2), text))
        self.conversation.messages.append(ChatMessage(Role.ASSISTANT, text, Ending.INTERRUPTED))
        self.made.note_settled(self.conversation)
        self._note()

    def had(self, messages):
        """Whether these ever stood together, the last one perhaps as its beginning."""
        texts = [message.text for message in messages]
        if not texts:
            return True
        for state in self.states:
            for at in range(len(state) - len(texts) + 1):
                piece = state[at : at + len(texts)]
                if all(one == other or other.startswith(one) for one, other in zip(texts, piece, strict=True)):
                    return True
        return False


def damaged(lines, chance):
    """Some of the ways in which a file gets damaged."""
    lines = list(lines)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        n = chance.randrange(len(lines))
        kind = chance.choice(("flip", "flip", "zero", "lose", "double", "swap", "glue", "newline", "tail"))
        if kind == "flip":
            lines[n] = broken(lines[n])
        elif kind == "zero" and any(lines):
            content = bytearray(b"".join(lines))
            at = chance.randrange(len(content))
            length = min(chance.choice((1, 16, 512)), len(content) - at)
            content[at : at + length] = bytes(length)
            lines = bytes(content).splitlines(keepends=True)
        elif kind == "lose":
            del lines[n]
        elif kind == "double":
            lines.insert(chance.randrange(n, len(lines)) + 1, lines[n])
        elif kind == "swap":
            m = chance.randrange(len(lines))
            lines[n], lines[m] = lines[m], lines[n]
        elif kind == "glue":
            lines[n] = lines[n][: len(lines[n]) // 3]
        elif kind == "newline":
            lines[n] = lines[n].replace(b"\n", b"\x0b")
        else:
            lines = [*lines[:n], lines[n][: chance.randrange(len(lines[n]) + 1)]]
        lines = lines or [b""]
    return b"".join(lines)


def check(root, history, content):
    log = root / "000001" / LOG_NAME
    log.write_bytes(content)
    opened = open_and_close(root)
    conversation = opened.saved.conversation
    assert history.had(context(conversation)), "the model is told what never stood together"
    assert all(m.text == "" if m.is_missing else history.had([m]) for m in conversation.messages)
    assert [m.role for m in conversation.messages] == [
        (Role.USER, Role.ASSISTANT)[n % 2] for n in range(len(conversation.messages))
    ]
    runs = [[]]
    for message in conversation.messages:
        if message.is_missing:
            runs.append([])
        else:
            runs[-1].append(message)
    assert all(history.had(run) for run in runs), "things stand side by side that never did, and no gap is between them"
    size = log.stat().st_size
    before = [(m.text, m.is_missing) for m in conversation.messages]
    if conversation.awaits_reply:
        before.pop()  # the next message takes its place
    go_on(root)
    again = Store(root).read("000001").conversation
    assert log.stat().st_size > size
    assert [(m.text, m.is_missing) for m in again.messages] == [
        *before,
        ("and now?", False),
        ("now it goes on", False),
    ]
    assert [m.text for m in context(again)][-2:] == ["and now?", "now it goes on"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_damage_puts_together_what_never_stood_together(tmp_path, seed):
    chance = random.Random(seed)
    root = tmp_path / "conversations"
    history = History(root, chance)
    history.live(12)
    lines = lines_of(root / "000001" / LOG_NAME)
    assert all(checksum_of(line) == int(line[:8], 16) for line in lines)
    for _ in range(60):
        check(root, history, damaged(lines, chance))

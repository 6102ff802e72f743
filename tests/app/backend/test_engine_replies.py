"""Replies that are stopped, continued, regenerated or replaced, in the engine thread."""

from pathlib import Path
from typing import Any

import pytest

from app.conversations.conversation import Ending
from app.session.events import (
    ConversationReread,
    EditCostMeasured,
    GenerationFailed,
    GenerationFinished,
    PromptRefused,
    PromptStopped,
    ReplyReopened,
    ThinkingFinished,
    ThoughtGenerated,
    TurnsDropped,
)
from engine.errors import BrokenModelError
from tests.app.backend.engine_driver import PATIENCE_S, Engine, texts
from tests.app.fake_engine import Gate, Script

TEN = [f" {n}" for n in range(10)]


@pytest.mark.parametrize("stops", [[1], [9], [3, 2, 1]])
def test_a_stopped_reply_continues_as_if_it_had_not_stopped(
    engine: Engine, stops: list[int]
) -> None:
    engine.script.replies = [TEN]
    engine.load()
    engine.ask("count")
    expected_tokens = engine.session.tokens
    engine.chat_session.start_new(None)
    engine.stop_after(stops[0], lambda: engine.chat_session.submit("count"))
    for n_tokens in stops[1:]:
        engine.stop_after(n_tokens, engine.chat_session.continue_reply)
    engine.chat_session.continue_reply()
    messages = engine.collect()
    assert isinstance(messages[0], ReplyReopened)
    assert texts(messages) == "".join(TEN)
    assert engine.session.tokens == expected_tokens
    finished = messages[-1]
    assert (finished.ending, finished.figures.tokens) == (Ending.COMPLETE, 10 - sum(stops))
    assert finished.figures.prompt_tokens <= 1


@pytest.mark.parametrize("is_continued", [True, False])
def test_the_turn_after_a_stopped_reply_reuses_all_of_it(
    engine: Engine, is_continued: bool
) -> None:
    engine.script.replies = [TEN]
    engine.load()
    engine.stop_after(4, lambda: engine.chat_session.submit("count"))
    if is_continued:
        engine.chat_session.continue_reply()
        engine.wait_for(GenerationFinished)
    length = engine.session.length
    assert engine.ask("more").figures.reused_tokens == length


def test_a_continuation_stopped_at_once_keeps_the_reply(engine: Engine) -> None:
    engine.script.replies = [TEN]
    engine.load()
    engine.stop_after(4, lambda: engine.chat_session.submit("count"))
    tokens = engine.session.tokens
    engine.script.token_gate = gate = Gate()
    engine.chat_session.continue_reply()
    assert gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    assert not any(isinstance(m, ReplyReopened) for m in engine.collect(PromptStopped))
    gate.open()
    assert engine.session.tokens == tokens
    engine.chat_session.continue_reply()
    assert texts(engine.collect()) == "".join(TEN)


def test_there_is_nothing_to_continue_before_a_reply(engine: Engine) -> None:
    engine.load()
    assert not engine.chat_session.continue_reply()


def test_a_reply_in_a_full_context_cannot_continue(engine: Engine) -> None:
    engine.script.n_ctx = 16
    engine.script.replies = [[" a"] * 100]
    engine.load()
    assert engine.ask("hi").ending is Ending.CONTEXT
    engine.chat_session.continue_reply()
    assert "the context is full" in engine.wait_for(GenerationFailed).reason


def test_continuing_in_a_full_context_prefills_nothing(engine: Engine) -> None:
    engine.script.n_ctx = 120
    engine.script.replies = [[" b"] * 20, [" a"] * 200]
    engine.load("be brief")
    engine.ask("hi")
    assert engine.ask("and then").ending is Ending.CONTEXT
    engine.chat_session.continue_reply()
    dropped = engine.wait_for(TurnsDropped)
    assert (dropped.n_turns, dropped.read_tokens) == (1, 1)
    engine.wait_for(GenerationFinished)
    assert engine.session.fed_counts[-1] == 1


def test_turns_dropped_by_a_stopped_turn_are_not_counted(engine: Engine) -> None:
    engine.script.n_ctx = 100
    engine.script.replies = [[" a"] * 30]
    engine.load()
    engine.ask("hi")
    engine.ask("and then")
    engine.script.prefill_gate = gate = Gate()
    engine.chat_session.submit("and after that " * 6)
    assert engine.wait_for(TurnsDropped).n_turns == 1
    assert gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    engine.wait_for(PromptStopped)
    # A turn ends a moment after its last event.
    engine.until(lambda: not engine.engine_thread.status.is_busy)
    assert engine.engine_thread.status.context_used == 36


def test_turns_are_replaced_after_all_turns_were_dropped(engine: Engine) -> None:
    engine.load()
    engine.ask("one")
    engine.chat_session.conversation.n_dropped = 2
    engine.ask("two")
    engine.chat_session.submit_edit("three", 1)
    engine.wait_for(GenerationFinished)
    assert engine.script.opened[-1].tokenizer.decode(engine.session.tokens).startswith("three")


def test_an_edit_is_weighed_after_turns_were_dropped(engine: Engine) -> None:
    engine.load("be brief")
    for text in ("one", "two", "three"):
        engine.ask(text)
    engine.chat_session.conversation.n_dropped = 2
    engine.chat_session.weigh_edit("zwei", 1)
    weighed = engine.wait_for(EditCostMeasured)
    engine.chat_session.submit_edit("zwei", 1)
    figures = engine.wait_for(GenerationFinished).figures
    assert (weighed.kept_tokens, weighed.read_tokens) == (
        figures.reused_tokens,
        figures.prompt_tokens,
    )


@pytest.mark.parametrize("trouble", ["stop", "error"])
def test_the_old_reply_is_restored_if_no_new_one_starts(engine: Engine, trouble: str) -> None:
    engine.load()
    engine.ask("hi")
    tokens_before = engine.session.tokens
    if trouble == "stop":
        engine.script.prefill_gate = gate = Gate()
        engine.chat_session.regenerate()
        assert gate.waiting.wait(PATIENCE_S)
        engine.engine_thread.cancel()
        engine.wait_for(PromptStopped)
        gate.open()
    else:
        engine.script.fail_after_tokens = 0
        engine.chat_session.regenerate()
        engine.wait_for(GenerationFailed)
        engine.script.fail_after_tokens = None
    engine.ask("and then")
    assert engine.session.tokens[: len(tokens_before)] == tokens_before


def test_an_edited_message_replaces_its_turn_and_later_ones(engine: Engine, script: Script) -> None:
    engine.load("be brief")
    for text in ("one", "two", "three"):
        engine.ask(text)
    engine.chat_session.submit_edit("zwei", 1)
    finished = engine.wait_for(GenerationFinished)
    assert (
        script.opened[-1].tokenizer.decode(engine.session.tokens)
        == "be briefoneHello there.zweiHello there."
    )
    # start, system, question, reply, <user>
    assert finished.figures.reused_tokens == 1 + 4 + 3 + 5 + 1


def test_weighing_an_edit_is_exact_and_changes_nothing(engine: Engine) -> None:
    engine.load()
    for text in ("one", "two", "three"):
        engine.ask(text)
    tokens_before = engine.session.tokens
    engine.chat_session.weigh_edit("zwei und mehr", 1)
    weighed = engine.wait_for(EditCostMeasured)
    assert engine.session.tokens == tokens_before
    assert weighed.kept_tokens + weighed.dropped_tokens == len(tokens_before)
    engine.chat_session.submit_edit("zwei und mehr", 1)
    figures = engine.wait_for(GenerationFinished).figures
    assert (weighed.kept_tokens, weighed.read_tokens) == (
        figures.reused_tokens,
        figures.prompt_tokens,
    )
    # The script prefills ten tokens a second.
    assert weighed.read_s == pytest.approx(weighed.read_tokens / 10.0)


def test_a_refused_edit_leaves_the_conversation_unchanged(engine: Engine) -> None:
    engine.load()
    engine.ask("one")
    engine.ask("two")
    tokens_before = engine.session.tokens
    engine.chat_session.submit_edit("word " * 600, 0)
    engine.wait_for(PromptRefused)
    engine.ask("three")
    assert engine.session.tokens[: len(tokens_before)] == tokens_before


def test_the_status_has_the_context_of_each_turn(engine: Engine) -> None:
    engine.load("be brief")
    engine.ask("one")
    engine.ask("two")
    status = engine.engine_thread.status
    assert status.turn_starts == (5, 13)
    # The last reply has no <end> yet.
    assert status.context_used == engine.session.length == 5 + 8 + 7
    engine.chat_session.start_new(None)
    engine.until(lambda: not engine.engine_thread.status.context_used)
    assert engine.engine_thread.status.turn_starts == ()


# Thinking


CONTROL = frozenset({"<think>", "</think>"})
HM_SO = ["<think>", "\n", "hm ", "so", "</think>", "\n\n", "Yes", "."]


@pytest.mark.parametrize(
    ("changes", "reply", "thought", "answer", "thought_tokens"),
    [
        ({}, HM_SO, "hm so", "Yes.", [5]),
        ({"opening": "<assistant><think>\n"}, ["hm", "</think>", "Yes"], "hm", "Yes", [2]),
        ({"control": CONTROL}, HM_SO, "hm so", "Yes.", [5]),
        ({"control": frozenset({"<tool>"})}, ["Yes", "<tool>", "."], "", "Yes.", []),
        ({"stops": ("<end>",)}, ["Yes", ".", "<end>", "and", "more"], "", "Yes.", []),
    ],
    ids=[
        "text",
        "opened by the template",
        "control tokens",
        "another control token",
        "ends at a text",
    ],
)
def test_thinking_is_separated_and_timed(
    script: Script,
    changes: dict[str, Any],
    reply: list[str],
    thought: str,
    answer: str,
    thought_tokens: list[int],
) -> None:
    script.replies = [reply]
    for name, value in changes.items():
        setattr(script, name, value)
    engine = Engine(script)
    engine.load()
    messages = engine.hear("hi")
    assert (texts(messages, ThoughtGenerated), texts(messages)) == (thought, answer)
    ended = [
        (m.tokens, m.duration_s, m.is_closed) for m in messages if isinstance(m, ThinkingFinished)
    ]
    assert ended == [(n, pytest.approx(n / 2), True) for n in thought_tokens]
    if reply is HM_SO:  # templates search for the tags in the messages
        assert script.opened[-1].chats[-1].messages[-1].content == "<think>\nhm so</think>\n\nYes."
    engine.close()


@pytest.mark.parametrize("control", [CONTROL, frozenset()])
def test_figures_of_continued_thinking_add_up(engine: Engine, control: frozenset[str]) -> None:
    engine.script.control = control
    engine.script.replies = [["<think>", "a", "b", "c", "</think>", "Yes"]]
    engine.load()
    engine.script.token_gate = gate = Gate()
    engine.chat_session.submit("hi")
    gate.allow(2)
    assert gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    messages = engine.collect()
    gate.open()
    stopped = next(m for m in messages if isinstance(m, ThinkingFinished))
    assert (stopped.tokens, stopped.is_closed) == (2, False)
    engine.chat_session.continue_reply()
    messages = engine.collect()
    assert (texts(messages, ThoughtGenerated), texts(messages)) == ("abc", "Yes")
    finished = next(m for m in messages if isinstance(m, ThinkingFinished))
    assert (finished.tokens, finished.is_closed) == (5, True)
    assert 2.5 <= finished.duration_s < 3.0


def test_thinking_that_ended_before_the_stop_keeps_its_figures(engine: Engine) -> None:
    engine.script.replies = [["<think>", "a", "</think>", "Yes", " and", " no"]]
    engine.load()
    engine.stop_after(4, lambda: engine.chat_session.submit("hi"))
    engine.chat_session.continue_reply()
    messages = engine.collect()
    assert texts(messages) == "Yes and no"
    finished = next(m for m in messages if isinstance(m, ThinkingFinished))
    assert (finished.tokens, finished.duration_s) == (3, 1.5)


def test_a_reply_that_fails_while_thinking_shows_it(engine: Engine) -> None:
    engine.script.replies = [["<think>", "a", "b"]]
    engine.script.fail_after_tokens = 2
    engine.script.generate_error = BrokenModelError("NaN")
    engine.load()
    messages = engine.hear("hi", GenerationFailed)
    assert texts(messages, ThoughtGenerated) == "a"
    assert not next(m for m in messages if isinstance(m, ThinkingFinished)).is_closed


def test_loading_a_model_clears_the_turns(engine: Engine) -> None:
    engine.load()
    engine.ask("one")
    engine.load()
    assert (engine.engine_thread.status.turn_starts, engine.engine_thread.status.context_used) == (
        (),
        0,
    )


# Edited replies


def test_an_edited_reply_continues_and_drops_later_turns(engine: Engine) -> None:
    engine.script.replies = [TEN, [" one"], [" and on", " it goes"]]
    engine.load()
    engine.ask("count")
    tokens_before = engine.session.tokens
    engine.ask("more")
    engine.chat_session.submit_edited_reply(" 0 1 2 drei", 0)
    messages = engine.collect()
    assert isinstance(messages[0], ReplyReopened)
    assert texts(messages) == " 0 1 2 drei and on it goes"
    assert messages[-1].ending is Ending.COMPLETE
    assert (messages[-1].figures.tokens, messages[-1].figures.prompt_tokens) == (2, 1)
    n_reused = messages[-1].figures.reused_tokens
    assert engine.session.tokens[:n_reused] == tokens_before[:n_reused]
    engine.ask("again")
    text = engine.script.opened[-1].tokenizer.decode(engine.session.tokens)
    assert text == "count 0 1 2 drei and on it goesagain and on it goes"


@pytest.mark.parametrize("n_kept", [1, 5, 9])
def test_a_reply_cut_at_a_token_continues_as_before(engine: Engine, n_kept: int) -> None:
    engine.script.replies = [TEN]
    engine.load()
    engine.ask("count")
    expected_tokens = engine.session.tokens
    engine.chat_session.submit_edited_reply("".join(TEN[:n_kept]), 0)
    assert texts(engine.collect()) == "".join(TEN)
    assert engine.session.tokens == expected_tokens


def test_weighing_an_edited_reply_is_exact_and_changes_nothing(engine: Engine) -> None:
    engine.script.replies = [TEN, ["x"]]
    engine.load()
    for text in ("one", "two"):
        engine.ask(text)
    tokens_before = engine.session.tokens
    engine.chat_session.weigh_edit(" 0 1 two three", 0, is_reply=True)
    weighed = engine.wait_for(EditCostMeasured)
    assert engine.session.tokens == tokens_before
    assert weighed.kept_tokens + weighed.dropped_tokens == len(tokens_before)
    engine.chat_session.submit_edited_reply(" 0 1 two three", 0)
    figures = engine.wait_for(GenerationFinished).figures
    assert (weighed.kept_tokens, weighed.read_tokens) == (
        figures.reused_tokens,
        figures.prompt_tokens,
    )


def test_thinking_before_an_edited_answer_keeps_its_figures(engine: Engine) -> None:
    engine.script.replies = [["<think>", "a", "</think>", "Yes", " and", " no"], [" why"]]
    engine.load()
    engine.ask("hi")
    engine.chat_session.submit_edited_reply("No", 0)
    messages = engine.collect()
    assert (texts(messages, ThoughtGenerated), texts(messages)) == ("a", "No why")
    finished = next(m for m in messages if isinstance(m, ThinkingFinished))
    assert (finished.tokens, finished.duration_s, finished.is_closed) == (3, 1.5, True)


def test_an_edit_too_long_leaves_the_conversation_unchanged(engine: Engine) -> None:
    engine.script.replies = [TEN]
    engine.load()
    engine.ask("count")
    tokens_before = engine.session.tokens
    engine.chat_session.submit_edited_reply("word " * 600, 0)
    assert "context is full" in engine.wait_for(GenerationFailed).reason
    assert engine.session.tokens == tokens_before
    engine.chat_session.regenerate()
    assert texts(engine.collect()) == "".join(TEN)
    assert engine.session.tokens == tokens_before


@pytest.mark.parametrize(
    "action", ["regenerate", "continue", "edited reply", "edited reply of the refused message"]
)
def test_turns_after_a_refused_message_stay_unchanged(
    engine: Engine, script: Script, action: str
) -> None:
    script.refused_words = "refused"
    conversation = engine.chat_session.conversation
    for question, reply in (("one", "1"), ("the refused two", "2"), ("three", "3")):
        conversation.add_user(question)
        conversation.add_reply(reply, Ending.STOPPED, None)
    engine.chat_session.load(Path("model.gguf"), keeps=True)
    assert "the chat template fails" in engine.wait_for(ConversationReread).trouble
    if action == "regenerate":
        engine.chat_session.regenerate()
    elif action == "continue":
        engine.chat_session.continue_reply()
    else:
        engine.chat_session.submit_edited_reply(
            "another beginning", 2 if action == "edited reply" else 1
        )
    assert "the chat template fails" in engine.wait_for(GenerationFailed).reason
    assert len(conversation.messages) == 6
    engine.chat_session.submit_edit("two", 1)
    assert engine.wait_for(GenerationFinished).ending is Ending.COMPLETE
    contents = [message.content for message in script.opened[-1].chats[-1].messages]
    assert contents == ["one", "1", "two", "Hello there."]

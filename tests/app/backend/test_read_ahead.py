import pytest

from app.backend.status import Activity
from app.program.settings import built_in_settings
from app.session.events import DraftCounted, GenerationFinished
from app.tui.chat import draft_cost
from engine.errors import TemplateError
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import FakeChat, Gate, Script

FORTY = " ".join(f"w{i}" for i in range(40))


@pytest.fixture
def engine(engine: Engine) -> Engine:
    engine.load()
    return engine


def prepare(engine: Engine, text: str, read_ahead: bool = True) -> DraftCounted:
    # a turn is over a moment after its last message
    engine.until(lambda: not engine.engine_thread.status.is_busy)
    assert engine.chat_session.read_ahead(text, read_ahead)
    counted = engine.wait_for(DraftCounted)
    engine.idle()
    return counted


def test_the_text_is_counted_without_touching_the_conversation(engine):
    counted = prepare(engine, FORTY, read_ahead=False)
    # begin, user, 40 words, end, assistant
    assert (counted.tokens, counted.ready_tokens) == (
        44,
        0,
    )
    assert engine.session.tokens == []
    assert engine.engine_thread.status.activity is Activity.READY


def test_what_was_read_ahead_need_not_be_read_again(engine):
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    engine.idle()
    first = engine.wait_for(DraftCounted)
    second = engine.wait_for(DraftCounted)
    assert (first.ready_tokens, first.read_tokens) == (0, 0)
    assert (second.tokens, second.ready_tokens, second.read_tokens) == (44, 41, 41)
    assert second.read_s == pytest.approx(4.1)
    finished = engine.ask(FORTY + " more")
    assert (finished.figures.reused_tokens, finished.figures.prompt_tokens) == (41, 4)


def test_another_text_keeps_what_both_have_in_common(engine):
    prepare(engine, FORTY)
    engine.wait_for(DraftCounted)
    changed = prepare(engine, FORTY.replace("w20", "changed"))
    assert changed.ready_tokens == 22  # begin, user, w0 to w19
    assert engine.ask("short").figures.reused_tokens == 2


def test_few_words_are_not_worth_it(engine):
    prepare(engine, "only a few words")
    assert engine.session.tokens == []


def test_tokens_read_ahead_are_no_part_of_the_conversation(engine):
    engine.ask("hello")
    n_tokens = engine.session.length
    prepare(engine, FORTY)
    engine.wait_for(DraftCounted)
    assert engine.session.length > n_tokens
    assert engine.engine_thread.status.context_used == n_tokens
    assert engine.chat_session.read_ahead("", is_read=False)
    engine.idle()
    assert engine.session.length == n_tokens


@pytest.mark.parametrize("is_asked", [True, False])
def test_anything_that_is_asked_ends_it_at_once(engine, script, is_asked):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    assert engine.engine_thread.status.activity is Activity.READING_AHEAD
    assert not engine.engine_thread.status.is_busy
    # The gate stays shut: only a cancel gets the engine out of it.
    assert engine.chat_session.submit("hello") if is_asked else engine.chat_session.start_new(None)
    engine.idle()
    script.prefill_gate.open()
    if is_asked:
        assert engine.wait_for(GenerationFinished).figures.tokens == 3


def test_a_cancel_that_the_session_forgot_is_given_again(engine, script):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.inbox.idle_work.is_dropped = (
        True  # as if the session had cleared its flag just after
    )
    engine.idle()
    assert engine.session.length == 0


def test_only_one_is_under_way_and_none_while_something_is_asked(engine, script):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert not engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    engine.chat_session.submit("hello")
    assert not engine.chat_session.read_ahead(FORTY, is_read=True)
    script.prefill_gate.open()
    engine.wait_for(GenerationFinished)


def test_a_text_that_cannot_be_rendered_is_said_when_it_is_sent(engine, monkeypatch):
    def refuse(chat: FakeChat, text: str) -> list[int]:
        raise TemplateError("no")

    with monkeypatch.context() as patch:
        patch.setattr(FakeChat, "add_user", refuse)
        assert engine.chat_session.read_ahead(FORTY, is_read=True)
        engine.idle()
    assert engine.messages == []
    assert engine.engine_thread.status.activity is Activity.READY
    assert engine.ask("hello").figures.tokens == 3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draft_cost, "TICK_S", 0.001)


async def test_the_prompts_corner_says_tokens_and_later_the_time(quick):
    async with chatting(prefill_while_typing="off") as driver:
        await driver.type("hello there")
        await driver.until(lambda: driver.prompt.border_subtitle == "6 tokens")
        driver.prompt.show_text("")
        await driver.until(lambda: "tokens" not in driver.prompt.border_subtitle)
        await driver.ask(FORTY)
        driver.prompt.show_text(FORTY)
        await driver.until(lambda: driver.prompt.border_subtitle == "44 tokens, about 4 s")
        await driver.shows("44 tokens, about 4 s")
        await driver.until(
            lambda: driver.chat.composer.draft_cost._quiet_ticks >= draft_cost.QUIET_TICKS
        )
        assert len(driver.script.opened[-1].sessions[-1].fed_counts) == 1, (
            "nothing is read ahead where that is off"
        )
        driver.prompt.show_text("/save x")
        await driver.until(lambda: "tokens" not in driver.prompt.border_subtitle)


async def test_a_pause_in_typing_is_used_and_the_reply_says_so(quick):
    async with chatting(prefill_while_typing="on") as driver:
        driver.prompt.show_text(FORTY)
        await driver.until(lambda: "41 read ahead" in str(driver.prompt.border_subtitle))
        await driver.pilot.press("enter")
        reply = await driver.last_reply()
        assert "41 cached" in reply.details


async def test_an_edit_that_changes_what_was_read_drops_it(quick):
    script = Script(prefill_gate=Gate())
    async with chatting(script, prefill_while_typing="on") as driver:
        driver.prompt.show_text(FORTY)
        await driver.until(script.prefill_gate.waiting.is_set)
        await driver.type(" more")
        await driver.until(
            lambda: driver.app.engine_thread.status.activity is Activity.READING_AHEAD
        )
        driver.prompt.show_text("something else")
        await driver.until(lambda: driver.app.engine_thread.status.activity is Activity.READY)
        await driver.until(lambda: driver.prompt.border_subtitle == "6 tokens")
        assert script.opened[-1].sessions[-1].fed_counts == []


async def test_nothing_is_read_ahead_on_battery_if_not_set(quick, monkeypatch):
    from app.tui import chat_options

    monkeypatch.setattr(chat_options, "is_on_battery", lambda: True)
    assert built_in_settings().prefill_while_typing == "auto"
    async with chatting() as driver:
        driver.prompt.show_text(FORTY)
        await driver.until(
            lambda: driver.chat.composer.draft_cost._quiet_ticks >= draft_cost.QUIET_TICKS
        )
        assert driver.script.opened[-1].sessions[-1].fed_counts == []


def test_a_text_slow_to_count_is_left_until_the_next_turn(engine, script, monkeypatch):
    add_user = FakeChat.add_user

    def add_user_slowly(chat: FakeChat, text: str) -> list[int]:
        script.clock.advance(len(text) / 1000)
        return add_user(chat, text)

    monkeypatch.setattr(FakeChat, "add_user", add_user_slowly)
    prepare(engine, FORTY, read_ahead=False)  # the first one of a model does not count
    prepare(engine, FORTY, read_ahead=False)
    assert engine.chat_session.read_ahead(FORTY + " more", is_read=True)
    engine.idle()
    assert engine.messages == []
    assert prepare(engine, "short", read_ahead=False).tokens == 5
    engine.ask("hello")
    assert prepare(engine, FORTY, read_ahead=False).ready_tokens == 0


def test_documents_are_read_ahead_even_if_slow_to_count(engine, monkeypatch):
    monkeypatch.setattr("app.backend.local.read_ahead.MAX_COUNT_S", -1.0)
    assert prepare(engine, FORTY).read_tokens == 0  # the first of a model is slow by itself
    prepare(engine, f"{FORTY} and more")  # slow: what is as long is left alone from here on
    documents = " ".join(f"d{i}" for i in range(80))
    assert engine.chat_session.read_ahead(documents, is_read=True, is_settled=True)
    engine.idle()
    engine.messages += engine.drain()
    counted = [
        one for one in engine.messages if isinstance(one, DraftCounted) and one.text == documents
    ]
    assert [one.read_tokens for one in counted] == [0, 81 - 2]

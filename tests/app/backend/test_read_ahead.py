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
    # A turn ends a moment after its last event.
    engine.until(lambda: not engine.engine_thread.status.is_busy)
    assert engine.chat_session.read_ahead(text, read_ahead)
    counted = engine.wait_for(DraftCounted)
    engine.idle()
    return counted


def test_counting_a_draft_does_not_change_the_conversation(engine):
    counted = prepare(engine, FORTY, read_ahead=False)
    # begin, user, 40 words, end, assistant
    assert (counted.tokens, counted.ready_tokens) == (
        44,
        0,
    )
    assert engine.session.tokens == []
    assert engine.engine_thread.status.activity is Activity.READY


def test_tokens_read_ahead_are_reused(engine):
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    engine.idle()
    first = engine.wait_for(DraftCounted)
    second = engine.wait_for(DraftCounted)
    assert (first.ready_tokens, first.read_tokens) == (0, 0)
    assert (second.tokens, second.ready_tokens, second.read_tokens) == (44, 41, 41)
    assert second.read_s == pytest.approx(4.1)
    finished = engine.ask(FORTY + " more")
    assert (finished.figures.reused_tokens, finished.figures.prompt_tokens) == (41, 4)


def test_a_changed_text_reuses_the_common_prefix(engine):
    prepare(engine, FORTY)
    engine.wait_for(DraftCounted)
    changed = prepare(engine, FORTY.replace("w20", "changed"))
    assert changed.ready_tokens == 22  # begin, user, w0 to w19
    assert engine.ask("short").figures.reused_tokens == 2


def test_a_short_text_is_not_read_ahead(engine):
    prepare(engine, "only a few words")
    assert engine.session.tokens == []


def test_tokens_read_ahead_are_not_in_the_conversation(engine):
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
def test_every_request_ends_read_ahead_at_once(engine, script, is_asked):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    assert engine.engine_thread.status.activity is Activity.READING_AHEAD
    assert not engine.engine_thread.status.is_busy
    # The gate stays closed, so only a cancel releases the engine.
    assert engine.chat_session.submit("hello") if is_asked else engine.chat_session.start_new(None)
    engine.idle()
    script.prefill_gate.open()
    if is_asked:
        assert engine.wait_for(GenerationFinished).figures.tokens == 3


def test_a_cancel_lost_by_the_session_is_repeated(engine, script):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.inbox.idle_work.is_dropped = (
        True  # as if the session had cleared its flag just after
    )
    engine.idle()
    assert engine.session.length == 0


def test_one_read_ahead_runs_at_once_and_none_with_requests(engine, script):
    script.prefill_gate = Gate()
    assert engine.chat_session.read_ahead(FORTY, is_read=True)
    assert not engine.chat_session.read_ahead(FORTY, is_read=True)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    engine.chat_session.submit("hello")
    assert not engine.chat_session.read_ahead(FORTY, is_read=True)
    script.prefill_gate.open()
    engine.wait_for(GenerationFinished)


def test_a_text_that_cannot_be_rendered_fails_when_sent(engine, monkeypatch):
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
def no_typing_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draft_cost, "TICK_S", 0.001)


async def test_the_prompt_shows_tokens_and_then_the_time(no_typing_pause):
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
            "nothing is read ahead if it is off"
        )
        driver.prompt.show_text("/save x")
        await driver.until(lambda: "tokens" not in driver.prompt.border_subtitle)


async def test_read_ahead_happens_while_typing_pauses(no_typing_pause):
    async with chatting(prefill_while_typing="on") as driver:
        driver.prompt.show_text(FORTY)
        await driver.until(lambda: "41 read ahead" in str(driver.prompt.border_subtitle))
        await driver.pilot.press("enter")
        reply = await driver.last_reply()
        assert "41 cached" in reply.details


async def test_an_edit_drops_the_changed_tokens_read_ahead(no_typing_pause):
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


async def test_nothing_is_read_ahead_on_battery_by_default(no_typing_pause, monkeypatch):
    from app.tui import chat_options

    monkeypatch.setattr(chat_options, "is_on_battery", lambda: True)
    assert built_in_settings().prefill_while_typing == "auto"
    async with chatting() as driver:
        driver.prompt.show_text(FORTY)
        await driver.until(
            lambda: driver.chat.composer.draft_cost._quiet_ticks >= draft_cost.QUIET_TICKS
        )
        assert driver.script.opened[-1].sessions[-1].fed_counts == []


def test_a_text_slow_to_count_is_ignored_until_the_next_turn(engine, script, monkeypatch):
    add_user = FakeChat.add_user

    def add_user_slowly(chat: FakeChat, text: str) -> list[int]:
        script.clock.advance(len(text) / 1000)
        return add_user(chat, text)

    monkeypatch.setattr(FakeChat, "add_user", add_user_slowly)
    prepare(engine, FORTY, read_ahead=False)  # the first count of a model is ignored
    prepare(engine, FORTY, read_ahead=False)
    assert engine.chat_session.read_ahead(FORTY + " more", is_read=True)
    engine.idle()
    assert engine.messages == []
    assert prepare(engine, "short", read_ahead=False).tokens == 5
    engine.ask("hello")
    assert prepare(engine, FORTY, read_ahead=False).ready_tokens == 0


def test_documents_are_read_ahead_even_if_slow_to_count(engine, monkeypatch):
    monkeypatch.setattr("app.backend.local.read_ahead.MAX_COUNT_S", -1.0)
    assert prepare(engine, FORTY).read_tokens == 0  # the first count of a model is always slow
    prepare(engine, f"{FORTY} and more")  # slow, so texts of this length are now ignored
    documents = " ".join(f"d{i}" for i in range(80))
    assert engine.chat_session.read_ahead(documents, is_read=True, is_settled=True)
    engine.idle()
    engine.messages += engine.drain()
    counted = [
        event
        for event in engine.messages
        if isinstance(event, DraftCounted) and event.text == documents
    ]
    assert [event.read_tokens for event in counted] == [0, 81 - 2]

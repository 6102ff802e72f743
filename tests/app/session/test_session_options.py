"""The user's choices: saved with the conversation, restored with it, and carried by requests."""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from io import StringIO
from pathlib import Path

import pytest

from app.cli import line_mode
from app.conversations.journal import Journal
from app.conversations.session_options import (
    SessionOptions,
    options_from_json,
    options_to_json,
)
from app.conversations.store import LoadedConversation, Store
from app.forms.answer_form import SCHEMA, AnswerForm
from app.program.personas import Persona, save_persona
from app.program.settings import Settings, Source, built_in_settings, override
from app.session.chat_session import ChatSession
from app.session.commands import choose_sampling, choose_thinking
from app.session.events import AdaptersChanged, ModelLoaded
from app.session.reply_options import describe_options
from tests.app.backend.engine_driver import Engine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script

FORM = AnswerForm(SCHEMA, '{"type": "string"}', "s.json")
TODAY = date.today().isoformat()
ALL = SessionOptions({"temperature": 0.3, "top_k": 7}, "off", FORM, ("/x/a.gguf:0.5",))


def load(engine: Engine, name: str, keeps: bool) -> None:
    assert engine.chat_session.load(Path(name), keeps, rereads=False)
    engine.wait_for(ModelLoaded)


class SavedChat:
    """A conversation in a database, continued by one program after another."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = Store(tmp_path)
        self._engines: list[Engine] = []

    def start(self, settings: Settings | None = None, resumes: bool = False) -> Engine:
        """Start a program, which ends the one before."""
        self.close()
        options = {"recalls_choices": True, "settings": settings or built_in_settings()}
        engine = Engine(Script(), **options)
        engine.chat_session = ChatSession(engine.engine_thread, None, Journal(self.store))
        self._engines.append(engine)
        if resumes:
            assert engine.chat_session.open_saved(self.open())
        load(engine, "m.gguf", keeps=resumes)
        return engine

    def open(self) -> LoadedConversation:
        return self.store.open("000001")

    def close(self) -> None:
        while self._engines:
            engine = self._engines.pop()
            engine.close()
            assert engine.chat_session.journal.close(10.0) == ""


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[SavedChat]:
    chat = SavedChat(tmp_path / "conversations")
    yield chat
    chat.close()


def change_all(engine: Engine) -> None:
    session = engine.chat_session
    choose_sampling(engine.engine_thread, session, "temperature 0.3")
    choose_sampling(engine.engine_thread, session, "top_k 7")
    choose_thinking(session, "off")
    session.change_options(form=FORM)
    assert session.use_adapters(ALL.adapters)
    engine.wait_for(AdaptersChanged)


@pytest.mark.parametrize("is_saved_before", [False, True])
def test_choices_survive_a_restart(chat: SavedChat, is_saved_before: bool) -> None:
    engine = chat.start()
    if is_saved_before:
        engine.ask("hi")
    change_all(engine)
    assert engine.chat_session.conversation.options == ALL
    if not is_saved_before:
        engine.chat_session.change_options(form=None)  # The scripted model has no forms.
        engine.ask("hi")
        engine.chat_session.change_options(form=FORM)
    engine = chat.start(resumes=True)
    assert engine.chat_session.conversation.options == ALL
    assert engine.chat_session.request_options == ALL
    assert describe_options(ALL, built_in_settings()) == (
        "temperature 0.3 · top_k 7 · thinking off · answers as s.json · adapter a.gguf:0.5"
    )


def test_a_reset_survives_a_restart(chat: SavedChat) -> None:
    engine = chat.start()
    engine.ask("hi")
    change_all(engine)
    engine.chat_session.change_options(form=None, adapters=(), thinking="", sampling={})
    assert chat.start(resumes=True).chat_session.conversation.options == SessionOptions()


def test_the_command_line_takes_precedence(chat: SavedChat) -> None:
    engine = chat.start()
    engine.ask("hi")
    change_all(engine)
    settings = override(built_in_settings(), "sampling.temperature", 1.5, "--temp")
    settings = replace(override(settings, "thinking", "on", "--think"), adapters=("/x/b.gguf",))
    session = chat.start(settings, resumes=True).chat_session
    assert session.conversation.options == SessionOptions({"top_k": 7}, "", FORM, ("/x/b.gguf",))
    assert session.request_options.sampling == {"temperature": 1.5, "top_k": 7}
    assert session.request_options.thinking == "on"


def test_an_opened_conversation_replaces_the_choices(chat: SavedChat) -> None:
    chat.start().ask("hi")
    engine = chat.start()
    change_all(engine)
    assert engine.chat_session.open_saved(chat.open())
    assert engine.chat_session.conversation.options == SessionOptions()


def test_a_new_conversation_and_a_fork_copy_the_choices(chat: SavedChat) -> None:
    engine = chat.start()
    engine.ask("hi")
    change_all(engine)
    assert engine.chat_session.fork(2)
    assert engine.chat_session.conversation.options == ALL
    assert engine.chat_session.start_new(None)
    assert engine.chat_session.conversation.options == ALL
    assert engine.chat_session.start_new(None, {"seed": 1})
    assert engine.chat_session.conversation.options == replace(ALL, sampling={"seed": 1})
    chat.close()
    assert chat.store.read("000001").conversation.options == ALL


def test_another_model_begins_with_its_own_choices(chat: SavedChat) -> None:
    engine = chat.start()
    engine.ask("hi")
    change_all(engine)
    load(engine, "other.gguf", keeps=True)
    assert engine.chat_session.conversation.options == SessionOptions({}, "", FORM, ALL.adapters)


def test_a_request_keeps_the_options_it_was_made_with(chat: SavedChat) -> None:
    """A command changes no request that the engine thread already has."""
    engine = chat.start()
    change_all(engine)
    request = engine.chat_session.answered_request()
    choose_sampling(engine.engine_thread, engine.chat_session, "temperature 0.9")
    choose_thinking(engine.chat_session, "on")
    engine.chat_session.change_options(form=None, adapters=())
    assert request.options == ALL
    assert not hasattr(engine.engine_thread.inbox, "thinking")


def test_the_engine_samples_as_the_request_says(chat: SavedChat) -> None:
    seen = []
    engine = Engine(Script(), sampling=lambda chosen, model, mode: seen.append((chosen, str(mode))))
    try:
        engine.load()
        choose_sampling(engine.engine_thread, engine.chat_session, "temperature 0.3")
        choose_thinking(engine.chat_session, "on")
        engine.ask("hi")
    finally:
        engine.close()
    assert seen == [({"temperature": 0.3}, "on")]


# ---- the saved form


@pytest.mark.parametrize("options", [SessionOptions(), SessionOptions(adapters=("/x",)), ALL])
def test_options_are_written_and_read(options: SessionOptions) -> None:
    assert options_from_json(options_to_json(options)) == (options, ())


def test_adapters_alone_are_saved_as_by_older_versions() -> None:
    assert options_to_json(SessionOptions(adapters=("/x/a.gguf",))) == '["/x/a.gguf"]'


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_row_of_an_older_version_has_no_choices(text: str) -> None:
    assert options_from_json(text) == (SessionOptions(), ())


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("{", ("options",)),
        ("3", ("options",)),
        ("[" * 100_000, ("options",)),
        (" " * (1 << 20), ("options",)),
        ('{"sampling": {"temperature": 1e9}}', ("sampling",)),
        ('{"sampling": {"temperature": NaN}}', ("sampling",)),
        ('{"sampling": {"nosuch": 1}}', ("sampling",)),
        ('{"sampling": [1]}', ("sampling",)),
        ('{"sampling": {"temperature": 1' + "0" * 4000 + "}}", ("sampling",)),
        ('{"thinking": "hard"}', ("thinking",)),
        ('{"thinking": {}}', ("thinking",)),
        ('{"form": "x"}', ("form",)),
        ('{"form": {"text": 1, "name": "x"}}', ("form",)),
        ('{"form": {"text": "", "name": "x"}}', ("form",)),
        (json.dumps({"form": {"text": "a" * 70_000, "name": "x"}}), ("form",)),
        ('{"form": {"text": "\\ud800", "name": "x"}}', ("form",)),
        ('{"adapters": "x"}', ("adapters",)),
        ('{"later\\u001b[2J": 1}', None),
    ],
)
def test_a_hostile_value_is_ignored(text: str, ignored: tuple[str, ...] | None) -> None:
    options, names = options_from_json(text)
    assert options == SessionOptions()
    assert len(names) == 1
    assert ignored is None or names == ignored
    assert "\x1b" not in names[0]


def test_valid_options_stay_next_to_an_invalid_one() -> None:
    text = '{"sampling": {"top_k": 7}, "thinking": "hard", "adapters": ["/x", 3]}'
    assert options_from_json(text) == (
        SessionOptions({"top_k": 7}, adapters=("/x",)),
        ("thinking",),
    )


def test_a_notice_names_only_a_few_options() -> None:
    text = json.dumps({f"x{index}": index for index in range(1000)})
    assert len(options_from_json(text)[1]) == 4


def set_saved(store: Store, text: object) -> None:
    assert store.root is not None
    with closing(sqlite3.connect(store.root / "conversations.db")) as db, db:
        db.execute("UPDATE conversation SET adapters=?", (text,))


@pytest.mark.parametrize("text", [None, "[]", 3, b"\xff"])
def test_an_old_or_damaged_row_opens_with_defaults(chat: SavedChat, text: object) -> None:
    chat.start().ask("hi")
    chat.close()
    set_saved(chat.store, text)
    session = chat.start(resumes=True).chat_session
    assert session.conversation.options == SessionOptions()
    assert len(session.conversation.messages) == 2


def test_one_notice_names_all_ignored_options(chat: SavedChat) -> None:
    chat.start().ask("hi")
    chat.close()
    set_saved(chat.store, '{"thinking": "hard", "later": 1, "sampling": {"top_k": 7}}')
    opened = chat.open()
    assert opened.notice == "saved options are not valid and were ignored: thinking, later"
    assert opened.saved.conversation.options == SessionOptions({"top_k": 7})
    assert opened.open_conversation is not None
    opened.open_conversation.close()


# ---- line mode


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    script = use_script(monkeypatch, Script())

    def say(*lines: str, **settings: object) -> str:
        monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))
        line_mode.chat("m.gguf", replace(built_in_settings(), **settings), script.clock)
        return capsys.readouterr().err

    return say


def test_line_mode_restores_the_choices(talk: Callable[..., str]) -> None:
    talk("hi", "/set temperature 0.3", "/think off")
    err = talk("/set", resume="last")
    assert "with temperature 0.3 · thinking off" in err
    assert "temperature 0.3. /set" in err
    assert Store().read("000001").conversation.options == SessionOptions(
        {"temperature": 0.3}, "off", date=TODAY
    )
    assert "temperature is 0.7 (command line)" in talk(
        "/set temperature",
        resume="last",
        sampling=replace(built_in_settings().sampling, temperature=0.7),
        sources={"sampling.temperature": Source.COMMAND_LINE},
    )


def test_line_mode_is_silent_without_choices(talk: Callable[..., str]) -> None:
    talk("hi")
    assert " · with " not in talk("/set", resume="last")


def test_line_mode_saves_forms_adapters_and_personas(
    talk: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.forms.constraint.check_form", lambda form: ())
    schema = tmp_path / "city.json"
    schema.write_text('{"type": "string"}')
    save_persona("brief", Persona("Be brief.", {"top_k": 9}))
    talk("/persona brief", "hi", f"/schema {schema}", "/lora /x/a.gguf")
    saved = Store().read("000001").conversation
    assert saved.system == "Be brief."
    form = AnswerForm(SCHEMA, '{"type": "string"}', "city.json")
    adapters = ("/x/a.gguf",)
    assert saved.options == SessionOptions({"top_k": 9}, "", form, adapters, "brief", TODAY)
    schema.unlink()
    assert "answers as city.json. /schema" in talk("/schema", resume="last")
    talk("/schema off", resume="last")
    assert Store().read("000001").conversation.options.form is None


# ---- the screen


async def test_the_screen_restores_the_choices() -> None:
    async with chatting(Script(replies=[["One."]])) as driver:
        await driver.ask("first?")
        await driver.say("/set temperature 0.3")
        await driver.say("/think off")
        await driver.shows("thinking off · temperature 0.3")
    async with chatting() as driver:
        await driver.note("with temperature 0.3 · thinking off · /new")
        await driver.shows("model · Q4_K_M · thinking off · temperature 0.3")
        await driver.say("/set reset")
        await driver.say("/new")
        await driver.until(lambda: driver.chat.core.chat_session.conversation.is_empty)
        assert driver.chat.core.chat_session.conversation.options == SessionOptions(
            thinking="off", date=TODAY
        )


async def test_the_title_bar_follows_the_opened_conversation() -> None:
    async with chatting(Script(replies=[["One."], ["Two."]]), resume="new") as driver:
        await driver.ask("first?")
        await driver.say("/new")
        await driver.say("/set temperature 0.3")
        await driver.ask("second?")
        await driver.chat.conversations.open("000001")
        await driver.until(lambda: "temperature 0.3" not in str(driver.chat.models.name.render()))
        await driver.chat.conversations.open("000002")
        await driver.shows("model · Q4_K_M · temperature 0.3")

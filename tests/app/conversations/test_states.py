"""The KV cache's state in the chat, over a scripted engine whose states are files of token ids."""

import dataclasses
import errno
import os
import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.backend.engine_inbox import IdleWork
from app.backend.local.engine_access import state_files
from app.backend.local.read_ahead import ReadAhead
from app.backend.local.saved_states import RestoreOutcome, SavedStates, StateFiles
from app.cli.run import RunOptions, run
from app.conversations import store
from app.conversations.conversation import USER, Conversation, PromptMessage
from app.conversations.journal import Journal
from app.conversations.state_files import SegmentRecorder, drop_oldest_states, kinds
from app.conversations.store import Store
from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.session.request import Request
from engine import Model
from engine.errors import EngineError
from tests.app import chat_driver
from tests.app.chat_driver import chatting
from tests.app.conversations.fake_states import files, saved_in, with_one_vocabulary
from tests.app.conversations.talk import saved_talk
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture
def _kept(monkeypatch):
    """The chat keeps states, and token ids mean the same after a restart."""

    plain = chat_driver.options_for
    monkeypatch.setattr(
        chat_driver,
        "options_for",
        lambda script: dataclasses.replace(
            plain(script),
            state_files=partial(files, reads_ahead=True),
        ),
    )


def kept_states():
    """The directory of the only model's states, and what is in it."""
    (place,) = kinds()
    return place, saved_in(place)


@pytest.mark.usefixtures("_kept")
async def test_a_new_chat_with_a_known_system_prompt_begins_at_once():
    system = "word " * 60
    async with chatting(system_prompt=system) as driver:
        await driver.until(
            lambda: kinds() and kept_states()[1], "the system prompt is read and kept"
        )
        first = await driver.ask("hello")
        assert first.message is not None
        assert first.message.figures is not None
        assert first.message.figures.prompt_tokens < 20
    async with chatting(system_prompt=system, resume="new") as driver:
        session = driver.script.opened[0].sessions[0]
        await driver.until(lambda: session.length >= 60, "it is there before anything was asked")
        assert session.fed_counts == []


@pytest.mark.usefixtures("_kept")
async def test_a_restart_and_a_new_chat_read_nothing_again():
    document = "long document " * 100
    script = with_one_vocabulary()
    async with chatting(script) as driver:
        first = await driver.ask(document + "first question")
        await driver.ask("hello again")
        tokens = list(script.opened[0].sessions[0].tokens)
    assert tokens in kept_states()[1]
    async with chatting(script) as driver:
        note = await driver.note("tokens back")
        assert re.fullmatch(
            rf'Continuing ".+" \(.+\) · {len(tokens)} tokens restored in 0\.25 s · /new', note
        )
        more = await driver.ask("more")
        await driver.say("/new")
        other = await driver.ask("something else")
        assert len(driver.chat.core.chat_session.conversation.messages) == 2
        await driver.say("/new")
        second = await driver.ask(document + "second question")
    found = [one.message.figures for one in (first, more, other, second)]
    for figures, least, most in zip(found, (200, 0, 0, 1), (300, 60, 60, 60), strict=True):
        assert least <= figures.prompt_tokens <= most
    assert found[1].reused_tokens >= len(tokens)
    assert found[3].reused_tokens >= 190
    assert len({tuple(one[:180]) for one in kept_states()[1] if len(one) > 200}) == 1
    assert len(Store().segments("000003")) > 0


def test_what_is_asked_comes_before_a_system_prompt(tmp_path):
    is_wanted = threading.Event()
    model = Script().open_model()
    session = model.session()
    place = SimpleNamespace(state_path=None, state_trouble="")
    states = SavedStates(place, files(reads_ahead=True), model, session, is_wanted.is_set)
    is_wanted.set()
    states.begin_with(list(range(100)))
    assert session.length == 0
    assert not list(paths.states_dir().rglob("*.kv"))


def test_no_bug_of_the_states_reaches_a_reply(tmp_path):
    def broken(*_):
        raise ZeroDivisionError

    model = Script().open_model()
    place = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    states = SavedStates(place, StateFiles(broken, broken, broken, broken), model, model.session())
    states.update()
    assert "internal error" in place.state_trouble
    assert "not used" in states.restore([1], tmp_path / "kv.state").trouble
    states.close()


def test_without_files_nothing_is_kept(tmp_path):
    place = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    model = Script().open_model()
    states = SavedStates(place, None, model, model.session())
    states.update()
    assert states.restore([1], tmp_path / "kv.state") == RestoreOutcome()
    states.begin_with([1] * 100)
    assert list(tmp_path.iterdir()) == []


def test_the_states_used_longest_ago_go_first(tmp_path):
    (place := paths.states_dir() / "m-f16").mkdir(parents=True)
    files = [place / f"{0:032}-9-{n:032}.kv" for n in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(b"x" * 1000)
        os.utime(file, (1e9 + number, 1e9 + number))
    assert drop_oldest_states(3_000) == 0
    assert drop_oldest_states(1_500) == 2000
    assert [file.exists() for file in files] == [False, False, True]


def test_a_deleted_conversation_takes_along_what_it_alone_needed(tmp_path):
    root = tmp_path / "conversations"
    place = paths.states_dir() / "m-f16"
    place.mkdir(parents=True)
    names = [f"{0:032}-{n}-{n:032}.kv" for n in (1, 2, 3)]
    for name in names:
        (place / name).write_bytes(b"x")
    for own in (names[:2], names[1:]):
        saved_talk(root, 1)
        notes = SegmentRecorder(root / Store(root).ids()[-1], "m-f16")
        for name in own * 2:
            notes.note(name)
    assert [entry.state_bytes for entry in Store(root).entries()] == [2, 2]
    assert Store(root).state_bytes(Store(root).ids()) == 3
    Store(root).delete("000001")
    assert [(place / name).exists() for name in names] == [False, True, True]
    assert Store(root).segments("000002") == {place / name for name in names[1:]}


def begun(name):
    """A journal that has saved a message under this title, as another program would."""
    journal = Journal(Store())
    conversation = Conversation()
    journal.begin(title=name)
    conversation.add_user("hello")
    journal.save_question(conversation, is_replacing=False)
    assert journal.wait_until_saved(60)
    return journal


def go_on(monkeypatch, name):
    use_script(monkeypatch, Script())
    return run(RunOptions("m.gguf", "more", session=name), built_in_settings())


@pytest.mark.parametrize("name", ["notes", "1"])
def test_a_session_in_use_is_not_for_the_shell(name, monkeypatch):
    journal = begun("notes")
    try:
        with pytest.raises(Refusal, match="in use by another jalopy"):
            go_on(monkeypatch, name)
    finally:
        journal.close(60)
    assert Store().ids() == ["000001"]


def test_a_session_on_a_read_only_disk_is_refused_with_the_cause(monkeypatch):
    assert begun("notes").close(60) == ""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(store, "take", refuse)
    with pytest.raises(
        Refusal, match=r"the disk is read-only \(fix that, or leave --session out\)"
    ):
        go_on(monkeypatch, "notes")


@pytest.mark.usefixtures("_kept")
async def test_each_model_finds_its_state_again_after_failures_too():
    script = with_one_vocabulary()
    async with chatting(script, model="one.gguf") as driver:
        await driver.ask("hello")
        await driver.ask("again")
        n_before = script.opened[0].sessions[0].length
        await driver.until(lambda: driver.chat.core.chat_session.load(Path("two.gguf"), keeps=True))
        await driver.note("read the conversation again")
        await driver.ask("and you?")
        assert len(kinds()) == 2
        await driver.until(lambda: driver.chat.core.chat_session.load(Path("one.gguf"), keeps=True))
        note = await driver.note("tokens were already read")
        assert note.startswith(f"{n_before} of ")
        assert script.opened[2].sessions[0].fed_counts[0] < n_before
        reply = await driver.ask("thanks")
        assert reply.message is not None
        assert reply.message.figures is not None
        assert reply.message.figures.reused_tokens > n_before
        n_before = script.opened[2].sessions[0].length
        script.open_errors["two.gguf"] = EngineError("two.gguf: broken")
        await driver.until(lambda: driver.chat.core.chat_session.load(Path("two.gguf")))
        await driver.note(f"{n_before} of ")


def test_a_window_goes_back_by_the_file_beyond_its_ring(tmp_path):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session, fresh = (model.session(n_ctx=2048) for _ in range(2))
    place = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    states = SavedStates(place, state_files(built_in_settings()), model, session, saves_names=False)
    ids = list(range(3, 203)) * 6
    for at in range(0, len(ids), 100):
        session.feed(ids[at : at + 100])
        states.update()
        states.leave(60)
    states.update()
    wanted = [*ids[:500], 7, 8]
    assert session.reusable(wanted) == 0
    assert states.reusable(wanted) == 500
    assert states.restore(wanted).tokens == 500
    assert session.prefill(wanted).fed == 2
    fresh.feed(wanted[:500])
    fresh.prefill(wanted)
    assert session.feed([9]).tobytes() == fresh.feed([9]).tobytes()
    states.close(60)
    model.close()


def test_a_document_is_read_apart_from_the_conversation(tmp_path, monkeypatch):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session = model.session(n_ctx=2048)
    idle = IdleWork()
    ids = list(range(3, 203)) * 6
    told = []
    place = SimpleNamespace(state_path=None, state_trouble="")
    states = SavedStates(place, state_files(built_in_settings()), model, session)
    session.prefill([3, 4, 5])
    idle.drop()
    assert states.read_apart(ids, Store().root / "000001", idle, told.append) == ""
    assert states.n_saved(ids) == 0, "something else was asked"
    assert idle.begin()
    with monkeypatch.context() as patched:
        patched.setattr(
            "engine.saved_state.writer.shutil.disk_usage", lambda _: SimpleNamespace(free=0)
        )
        assert "nearly full" in states.read_apart(ids, Store().root / "000001", idle, told.append)
    assert states.read_apart(ids, Store().root / "000001", idle, told.append) == ""
    assert states.n_saved(ids) == len(ids) >= told[-1]
    assert session.tokens == [3, 4, 5]
    assert states.restore(ids).tokens == len(ids)
    model.close()


def test_dropped_typed_text_leaves_a_cache_that_cannot_go_back(tmp_path):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session = model.session(n_ctx=2048)
    ahead = ReadAhead(SimpleNamespace(), SimpleNamespace(session=session, chat=None), None)
    for settled, left in ((1150, 1150), (600, 1200)):
        session.prefill(list(range(3, 203)) * 6)
        ahead.settle(settled)
        ahead.prepare(Request((PromptMessage(USER, ""),)), "", True, False)
        assert session.length == left
    model.close()

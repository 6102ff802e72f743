"""Saved KV cache states in the chat, over a scripted engine whose states are files of token ids."""

import errno
import os
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.backend.engine_link import IdleWork
from app.backend.local.engine_access import state_files
from app.backend.local.read_ahead import ReadAhead
from app.backend.local.saved_states import (
    LEAST_TAKEN_TOKENS,
    WORTH_SAVING_S,
    RestoreOutcome,
    SavedStates,
    StateFiles,
)
from app.cli.run import RunOptions, run
from app.conversations import store
from app.conversations.conversation import USER, Conversation, PromptMessage
from app.conversations.journal import Journal
from app.conversations.state_files import SegmentRecorder, drop_oldest_states, kinds
from app.conversations.store import Store
from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import Source, built_in_settings, settings_of
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
def _save_states(monkeypatch):
    """Let the chat save states, with the same token ids after a restart."""
    plain = chat_driver.options_for
    monkeypatch.setattr(
        chat_driver,
        "options_for",
        lambda script: replace(
            plain(script),
            state_files=partial(files, reads_ahead=True),
        ),
    )


def saved_states():
    """Return the directory of the only model's states, and the states in it."""
    (directory,) = kinds()
    return directory, saved_in(directory)


@pytest.mark.usefixtures("_save_states")
async def test_a_new_chat_with_a_known_system_prompt_starts_at_once():
    system = "word " * 60
    async with chatting(system_prompt=system) as driver:
        await driver.until(
            lambda: kinds() and saved_states()[1], "the system prompt is read and kept"
        )
        first = await driver.ask("hello")
        assert first.message is not None
        assert first.message.figures is not None
        assert first.message.figures.prompt_tokens < 20
    async with chatting(system_prompt=system, resume="new") as driver:
        session = driver.script.opened[0].sessions[0]
        await driver.until(lambda: session.length >= 60, "it is there before anything was asked")
        assert session.fed_counts == []


@pytest.mark.usefixtures("_save_states")
async def test_a_restart_and_a_new_chat_prefill_nothing_twice():
    document = "long document " * 100
    script = with_one_vocabulary()
    async with chatting(script) as driver:
        first = await driver.ask(document + "first question")
        await driver.ask("hello again")
        tokens = list(script.opened[0].sessions[0].tokens)
    assert tokens in saved_states()[1]
    async with chatting(script) as driver:
        note = await driver.note("tokens restored in")
        assert re.fullmatch(
            rf'Continuing ".+" \(.+\) · {len(tokens)} tokens restored in 0\.25 s · /new', note
        )
        continued = await driver.ask("more")
        await driver.say("/new")
        unrelated = await driver.ask("something else")
        assert len(driver.chat.core.chat_session.conversation.messages) == 2
        await driver.say("/new")
        second = await driver.ask(document + "second question")
    figures_of_replies = [reply.message.figures for reply in (first, continued, unrelated, second)]
    for figures, least, most in zip(
        figures_of_replies, (200, 0, 0, 1), (300, 60, 60, 60), strict=True
    ):
        assert least <= figures.prompt_tokens <= most
    assert figures_of_replies[1].reused_tokens >= len(tokens)
    assert figures_of_replies[3].reused_tokens >= 190
    assert len({tuple(reply[:180]) for reply in saved_states()[1] if len(reply) > 200}) == 1
    assert len(Store().segments("000003")) > 0


def test_a_request_comes_before_a_system_prompt(tmp_path):
    has_request = threading.Event()
    model = Script().open_model()
    session = model.session()
    state = SimpleNamespace(state_path=None, state_trouble="")
    states = SavedStates(state, files(reads_ahead=True), model, session, has_request.is_set)
    has_request.set()
    states.begin_with(list(range(100)))
    assert session.length == 0
    assert not list(paths.states_dir().rglob("*.kv"))


def test_an_error_in_saved_states_does_not_break_a_reply(tmp_path):
    def raise_error(*_):
        raise ZeroDivisionError

    model = Script().open_model()
    session = model.session()
    session.feed(range(LEAST_TAKEN_TOKENS))
    state = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    files = StateFiles(raise_error, raise_error, raise_error, raise_error, raise_error)
    states = SavedStates(state, files, model, session)
    states.update()
    assert "internal error" in state.state_trouble
    assert "not used" in states.restore([1], tmp_path / "kv.state").trouble
    states.close()


@pytest.mark.parametrize(
    ("n_tokens", "read_s", "is_saved"),
    [
        (LEAST_TAKEN_TOKENS - 1, None, False),
        (LEAST_TAKEN_TOKENS, None, True),
        (LEAST_TAKEN_TOKENS - 1, 60.0, False),
        (300, 0.9 * WORTH_SAVING_S, False),
        (300, 1.1 * WORTH_SAVING_S, True),
    ],
)
def test_what_is_read_at_once_takes_no_disk(tmp_path, n_tokens, read_s, is_saved):
    model = Script().open_model()
    session = model.session()
    state = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    real_limits = replace(files(), least_tokens=LEAST_TAKEN_TOKENS, least_read_s=WORTH_SAVING_S)
    states = SavedStates(
        state, real_limits, model, session, saves_names=False, seconds_to_read=lambda _: read_s
    )
    for token in range(n_tokens):
        session.feed([token])
        states.update()
    states.close()
    assert bool(list(paths.states_dir().rglob("*.kv"))) == is_saved


def test_a_conversation_that_grows_is_saved_whole(tmp_path):
    model = Script().open_model()
    session = model.session()
    state = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    slow = replace(files(), least_read_s=1.0)
    states = SavedStates(
        state, slow, model, session, saves_names=False, seconds_to_read=lambda n: n / 100
    )
    for start in range(0, 300, 50):
        session.feed(range(start, start + 50))
        states.update()
    assert saved_states()[1][0] == list(range(300))
    states.close()


def test_the_default_quota_follows_the_free_disk(monkeypatch):
    free = SimpleNamespace(free=20 << 30)
    monkeypatch.setattr("app.program.settings.shutil.disk_usage", lambda _: free)
    settings = built_in_settings()
    assert settings.kv_states_quota_bytes == 2 << 30
    free.free = 1 << 40
    assert settings.kv_states_quota_bytes == 4 << 30
    free.free = 0
    assert settings.kv_states_quota_bytes == 0
    own_settings = settings_of("kv_states_quota_gb = 3.0", Source.FILE)
    assert own_settings.kv_states_quota_bytes == 3 << 30


def test_without_state_files_nothing_is_saved(tmp_path):
    state = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    model = Script().open_model()
    states = SavedStates(state, None, model, model.session())
    states.update()
    assert states.restore([1], tmp_path / "kv.state") == RestoreOutcome()
    states.begin_with([1] * 100)
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_states_are_deleted_first(tmp_path):
    (directory := paths.states_dir() / "m-f16").mkdir(parents=True)
    files = [directory / f"{0:032}-9-{n:032}.kv" for n in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(b"x" * 1000)
        os.utime(file, (1e9 + number, 1e9 + number))
    assert drop_oldest_states(3_000) == 0
    assert drop_oldest_states(1_500) == 2000
    assert [file.exists() for file in files] == [False, False, True]


def test_deleting_a_conversation_deletes_states_only_it_used(tmp_path):
    root = tmp_path / "conversations"
    directory = paths.states_dir() / "m-f16"
    directory.mkdir(parents=True)
    names = [f"{0:032}-{n}-{n:032}.kv" for n in (1, 2, 3)]
    for name in names:
        (directory / name).write_bytes(b"x")
    for used_names in (names[:2], names[1:]):
        saved_talk(root, 1)
        recorder = SegmentRecorder(root / Store(root).ids()[-1], "m-f16")
        for name in used_names * 2:
            recorder.note(name)
    assert [entry.state_bytes for entry in Store(root).entries()] == [2, 2]
    assert Store(root).state_bytes(Store(root).ids()) == 3
    Store(root).delete("000001")
    assert [(directory / name).exists() for name in names] == [False, True, True]
    assert Store(root).segments("000002") == {directory / name for name in names[1:]}


def start_saved(name):
    """Return a journal that has saved a message under this title, as another program would."""
    journal = Journal(Store())
    conversation = Conversation()
    journal.begin(title=name)
    conversation.add_user("hello")
    journal.save_question(conversation, is_replacing=False)
    assert journal.wait_until_saved(60)
    return journal


def continue_session(monkeypatch, name):
    use_script(monkeypatch, Script())
    return run(RunOptions("m.gguf", "more", session=name), built_in_settings())


@pytest.mark.parametrize("name", ["notes", "1"])
def test_a_session_in_use_is_refused_by_run(name, monkeypatch):
    journal = start_saved("notes")
    try:
        with pytest.raises(Refusal, match="in use by another jalopy"):
            continue_session(monkeypatch, name)
    finally:
        journal.close(60)
    assert Store().ids() == ["000001"]


def test_a_session_on_a_read_only_disk_is_refused_with_reason(monkeypatch):
    assert start_saved("notes").close(60) == ""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(store, "take", refuse)
    with pytest.raises(
        Refusal, match=r"the disk is read-only \(fix that, or leave --session out\)"
    ):
        continue_session(monkeypatch, "notes")


@pytest.mark.usefixtures("_save_states")
async def test_each_model_restores_its_state_even_after_failures():
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


def test_a_saved_state_rewinds_a_window_beyond_its_ring(tmp_path):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session, fresh = (model.session(n_ctx=2048) for _ in range(2))
    state = SimpleNamespace(state_path=tmp_path / "kv.state", state_trouble="")
    states = SavedStates(state, state_files(built_in_settings()), model, session, saves_names=False)
    ids = list(range(3, 203)) * 6
    for start in range(0, len(ids), 100):
        session.feed(ids[start : start + 100])
        states.update()
        states.leave(60)
    states.update()
    prompt = [*ids[:500], 7, 8]
    assert session.reusable(prompt) == 0
    assert states.reusable(prompt) == 500
    assert states.restore(prompt).tokens == 500
    assert session.prefill(prompt).fed == 2
    fresh.feed(prompt[:500])
    fresh.prefill(prompt)
    assert session.feed([9]).tobytes() == fresh.feed([9]).tobytes()
    states.close(60)
    model.close()


@pytest.mark.smoke
def test_a_document_is_prefilled_without_the_conversation(tmp_path, monkeypatch):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session = model.session(n_ctx=2048)
    idle = IdleWork()
    ids = list(range(3, 203)) * 6
    progress = []
    state = SimpleNamespace(state_path=None, state_trouble="")
    states = SavedStates(state, state_files(built_in_settings()), model, session)
    session.prefill([3, 4, 5])
    idle.drop()
    assert states.read_apart(ids, Store().root / "000001", idle, progress.append) == ""
    assert states.n_saved(ids) == 0, "another request came"
    assert idle.begin()
    with monkeypatch.context() as patched:
        patched.setattr(
            "engine.saved_state.writer.shutil.disk_usage", lambda _: SimpleNamespace(free=0)
        )
        assert "nearly full" in states.read_apart(
            ids, Store().root / "000001", idle, progress.append
        )
    assert states.read_apart(ids, Store().root / "000001", idle, progress.append) == ""
    assert states.n_saved(ids) == len(ids) >= progress[-1]
    assert session.tokens == [3, 4, 5]
    assert states.restore(ids).tokens == len(ids)
    model.close()


def test_dropped_draft_text_leaves_a_cache_that_cannot_rewind(tmp_path):
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "gemma3", context_length=4096), threads=1
    )
    session = model.session(n_ctx=2048)
    ahead = ReadAhead(SimpleNamespace(), SimpleNamespace(session=session, chat=None), None)
    for n_settled, expected_length in ((1150, 1150), (600, 1200)):
        session.prefill(list(range(3, 203)) * 6)
        ahead.set_conversation_tokens(n_settled)
        ahead.prepare(Request((PromptMessage(USER, ""),)), "", True, False)
        assert session.length == expected_length
    model.close()

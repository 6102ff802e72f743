import threading
import time
from pathlib import Path

import pytest

from app.backend.engine_link import QUEUE_LENGTH, EngineLink
from app.backend.engine_thread import EngineThread
from app.backend.options import ChatOptions
from app.backend.status import Activity
from app.conversations.conversation import Ending
from app.forms.answer_form import SCHEMA, AnswerForm
from app.program import paths
from app.program.settings import built_in_settings, override
from app.session.chat_session import Admission
from app.session.events import (
    GenerationFailed,
    ModelFailed,
    ModelLoaded,
    ModelSwitchFailed,
    PromptRefused,
    PromptStopped,
    TextGenerated,
)
from app.session.request import Request
from engine.errors import BrokenModelError, Cancelled, GGUFError
from tests.app.backend.engine_driver import PATIENCE_S, Engine, texts
from tests.app.fake_engine import Gate
from tests.app.forms.form_processes import compiling, until


def test_kernels_are_tuned_after_replies_until_done_once(script):
    calls = []
    gives_way = threading.Event()
    is_finished = threading.Event()

    def try_lookahead(model, session, is_unwanted, retry):
        calls.append(is_unwanted())
        if len(calls) == 1:
            gives_way.set()
            while not is_unwanted():
                threading.Event().wait(0.001)
            raise Cancelled("stopped")
        is_finished.set()

    engine = Engine(script, try_lookahead=try_lookahead)
    engine.load()
    assert not calls
    engine.ask("first")
    assert gives_way.wait(PATIENCE_S)
    engine.ask("second")
    # Otherwise the third message or the end would come before the tuning of the kernels.
    assert is_finished.wait(PATIENCE_S)
    engine.ask("third")
    engine.close()
    assert calls == [False, False]


def test_optional_commands_leave_space_for_a_message(script):
    engine_thread = EngineThread(
        ChatOptions(script.open_model, lambda chosen, model, mode: "sampling"), script.clock
    )
    for n in range(2 * QUEUE_LENGTH):  # the thread is busy
        engine_thread.weigh(Request(), f"text {n}")
    assert engine_thread.reply(Request())


def test_a_model_is_opened_described_and_saved_as_last(script):
    opened = []
    engine = Engine(script, on_opened=opened.append)
    loaded = engine.load()
    assert (loaded.name, loaded.quantization, loaded.n_ctx) == ("model", "Q4_K_M", 512)
    assert engine.engine_thread.status.activity is Activity.READY
    assert engine.engine_thread.status.threads == 2
    assert opened == [Path("model.gguf")]
    engine.close()


def test_compilation_is_named_and_counted(engine, script):
    script.open_gate = Gate()
    engine.chat_session.load(Path("model.gguf"))
    script.open_gate.allow(2)
    assert script.open_gate.waiting.wait(PATIENCE_S)
    status = engine.engine_thread.status
    # The second step is reported before the third step waits.
    while status.activity is not Activity.COMPILING:
        status = engine.engine_thread.status
    assert (status.step, status.done, status.total) == ("matvec q4_k", 1, 2)


def test_a_failure_to_open_a_model_is_one_clean_line(engine, script):
    script.open_error = GGUFError("bad\x1b[31m.gguf: no magic\nat all")
    engine.chat_session.load(Path("bad.gguf"))
    reason = engine.wait_for(ModelFailed).reason
    assert reason == "bad␛[31m.gguf: no magic\\nat all"
    assert engine.engine_thread.status.activity is Activity.NO_MODEL


def test_a_context_too_large_names_one_that_fits(script):
    engine = Engine(script, settings=override(built_in_settings(), "context_size", 4096, "--ctx"))
    engine.chat_session.load(Path("model.gguf"))
    assert "512 fit" in engine.wait_for(ModelFailed).reason
    assert script.opened[-1].is_closed
    engine.close()


def test_a_new_model_closes_the_earlier_one(engine, script):
    engine.load()
    engine.load()
    assert [model.is_closed for model in script.opened] == [True, False]


def test_opening_a_model_can_be_stopped(engine, script):
    script.open_gate = Gate()
    engine.chat_session.load(Path("model.gguf"))
    assert script.open_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    script.open_gate.allow()
    assert engine.wait_for(ModelFailed).reason == "stopped before the model was open"
    assert engine.engine_thread.status.activity is Activity.NO_MODEL
    script.open_gate.open()
    engine.load()
    engine.ask("hi")


def test_a_second_stop_still_restores_the_earlier_model(engine, script):
    engine.load()
    script.open_gate = Gate()
    engine.chat_session.load(Path("other.gguf"))
    assert script.open_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    script.open_gate.allow()
    assert not engine.wait_for(ModelSwitchFailed).is_open
    assert script.open_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    script.open_gate.open()
    assert engine.wait_for(ModelLoaded).path == "model.gguf"
    engine.ask("hi")


def test_a_stop_while_the_file_is_checked_closes_nothing(script):
    gate = Gate()
    engine = Engine(script, check_model=lambda path: gate.take(threading.Event()))
    engine.load()
    engine.chat_session.load(Path("other.gguf"))
    assert gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    gate.open()
    assert engine.wait_for(ModelSwitchFailed).is_open
    assert [model.is_closed for model in script.opened] == [False]
    engine.ask("hi")
    engine.close()


def test_adjacent_text_pieces_are_one_event():
    link = EngineLink(time.monotonic)
    for message in (TextGenerated("a"), TextGenerated("b"), PromptStopped(), TextGenerated("c")):
        link.emit(message)
    drained = link.outbox.drain()
    assert [type(message).__name__ for message in drained] == [
        "TextGenerated",
        "PromptStopped",
        "TextGenerated",
    ]
    assert (drained[0].text, drained[2].text) == ("ab", "c")
    assert link.outbox.drain() == []


def test_requested_threads_are_not_those_of_the_next_model(engine, script):
    engine.load()
    link = engine.engine_thread._link
    in_use = engine.engine_thread.state.threads
    link.inbox.requested_threads.append(in_use)
    assert link.inbox.pending_threads is in_use
    link.forget_model()
    assert link.inbox.pending_threads is None
    link.inbox.applying_threads = in_use
    assert link.inbox.pending_threads is in_use
    link.inbox.applying_threads = None


def test_escape_sequences_split_over_tokens_are_made_visible(engine, script):
    engine.load()
    script.replies = [["a\x1b", "]0;title\x07b", "\r", "\nc"]]
    engine.chat_session.submit("hi")
    assert texts(engine.collect()) == "a␛]0;title␇b\nc"


def test_figures_follow_the_clock_and_only_new_tokens_are_fed(engine):
    engine.load()
    figures = engine.ask("hi").figures
    # Prompt: <s> <user> hi <end> <assistant>, 0.1 s each; then a token every 0.5 s.
    assert figures.prompt_tokens == 5
    assert figures.first_token_s == pytest.approx(1.0)
    assert (figures.tokens, figures.decode_tps) == (3, pytest.approx(2.0))
    second = engine.ask("and now").figures
    assert figures.reused_tokens == 0
    # The cache holds the five tokens of the prompt and the three of the reply.
    assert second.reused_tokens == 8
    assert second.prompt_tokens == 6  # <end> <user> and now <end> <assistant>


def test_a_stop_during_prefill_ends_the_turn_without_a_reply(engine, script):
    engine.load()
    script.prefill_gate = Gate()
    engine.chat_session.submit("a long question")
    script.prefill_gate.allow(2)
    assert script.prefill_gate.waiting.wait(PATIENCE_S)
    assert engine.engine_thread.status.activity is Activity.READING
    assert (engine.engine_thread.status.done, engine.engine_thread.status.total) == (2, 7)
    engine.engine_thread.cancel()
    engine.wait_for(PromptStopped)
    script.prefill_gate.open()
    figures = engine.ask("short").figures
    assert figures.tokens == 3


@pytest.mark.smoke
@pytest.mark.slow
def test_stopping_ends_the_compilation_of_a_form(script):
    slow = AnswerForm(SCHEMA, '{"type":"integer","multipleOf":1000003}', "slow.json")
    engine = Engine(script)
    engine.load()
    engine.chat_session.change_options(form=slow)
    engine.chat_session.submit("hi")
    until(lambda: compiling())
    engine.engine_thread.cancel()
    engine.wait_for(PromptStopped)
    until(lambda: not compiling())
    engine.chat_session.change_options(form=None)
    assert engine.ask("more").ending is Ending.COMPLETE
    engine.close()


def test_a_cancel_before_the_turn_starts_is_not_lost(engine, script):
    engine.load()
    script.bandwidth_gate = Gate()
    engine.engine_thread.measure_bandwidth()
    assert script.bandwidth_gate.waiting.wait(PATIENCE_S)
    engine.chat_session.submit("hi")
    engine.engine_thread.cancel()
    script.bandwidth_gate.open()
    engine.wait_for(PromptStopped)


def test_a_message_too_long_is_refused_with_counts(engine):
    engine.load()
    engine.chat_session.submit("word " * 600)
    refused = engine.wait_for(PromptRefused)
    assert refused.n_ctx == 512
    assert refused.needed_tokens > 600
    assert engine.ask("short").figures.reused_tokens == 0


def test_a_new_conversation_keeps_only_its_system_prompt(engine, script):
    engine.load()
    engine.ask("hi")
    engine.chat_session.start_new("be brief")
    engine.ask("hi")
    spoken = script.opened[-1].tokenizer.decode(engine.session.tokens)
    assert spoken.startswith("be briefhi")


def test_a_broken_model_is_reported_and_the_turn_is_undone(engine, script):
    engine.load()
    script.fail_after_tokens = 0
    engine.chat_session.submit("hi")
    failed = engine.wait_for(GenerationFailed)
    assert failed.reason == "model.gguf: the model computed NaN"
    assert failed.partial_reply is None
    script.fail_after_tokens = None
    assert engine.ask("hi").ending is Ending.COMPLETE


def test_a_failure_during_a_reply_keeps_the_partial_reply(engine, script):
    engine.load()
    script.fail_after_tokens = 2
    script.generate_error = BrokenModelError("NaN")
    engine.chat_session.submit("hi")
    failed = engine.wait_for(GenerationFailed)
    assert failed.partial_reply.figures.tokens == 2


def test_an_internal_error_shows_its_type_without_its_text(engine, script):
    engine.load()
    script.prefill_error = KeyError("what the user typed")
    engine.chat_session.submit("what the user typed")
    reason = engine.wait_for(GenerationFailed).reason
    assert reason.startswith("internal error in the engine: KeyError (details in ")
    log = (paths.state_dir() / paths.LOG_NAME).read_text(encoding="utf-8")
    assert "builtins.KeyError" in log
    assert "backend.py" in log
    assert "what the user typed" not in log


def test_a_message_without_a_model_fails(engine):
    assert engine.chat_session.submit("hi") is Admission.NO_MODEL
    engine.engine_thread.reply(Request())  # as if its failure had not been handled yet
    assert engine.wait_for(GenerationFailed).reason == "no model is loaded"


def test_the_command_queue_is_limited(engine, script):
    script.open_gate = Gate()
    engine.chat_session.load(Path("model.gguf"))
    assert script.open_gate.waiting.wait(PATIENCE_S)
    accepted = [engine.engine_thread.continue_conversation(Request()) for _ in range(20)]
    assert accepted.count(True) == 8
    assert accepted[-1] is False


def test_closing_does_not_wait_for_a_busy_engine(script):
    script.open_gate = Gate()
    engine = Engine(script)
    engine.chat_session.load(Path("model.gguf"))
    assert script.open_gate.waiting.wait(PATIENCE_S)
    assert engine.engine_thread.close(patience_s=0.05) is False
    assert script.open_gate.waiting.is_set(), "the engine still waits at the gate"
    script.open_gate.open()


def test_closing_during_a_reply_ends_the_thread(script):
    script.token_gate = Gate()
    engine = Engine(script)
    engine.load()
    engine.chat_session.submit("hi")
    assert script.token_gate.waiting.wait(PATIENCE_S)
    assert engine.engine_thread.close(PATIENCE_S)
    assert script.opened[-1].is_closed

"""Measurements of the engine thread, over a scripted engine."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.backend import measures as engine_measures
from app.backend.engine_thread import EngineThread
from app.backend.local import engine_access
from app.backend.measures import phase_costs, time_spent
from app.backend.options import ChatOptions
from app.backend.reply import ReplyMeter
from app.machine.sensors import page_faults
from app.machine.sensors.daily_speeds import Mark
from app.machine.sensors.records import EngineFigures
from app.machine.sensors.reply_history import ReplyHistory
from app.machine.sensors.tuning_conditions import ConditionsWatch
from app.program.state import TunedChoice
from app.session.events import GenerationFailed, GenerationFinished, ModelFailed
from app.session.request import Request
from engine.errors import GGUFError
from engine.machine import host
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import FakeClock, Gate, Script

LONG_REPLY = [f" word{n}" for n in range(60)]


@pytest.fixture
def script():
    return Script(replies=[[f" word{n}" for n in range(20)]])


@pytest.fixture
def engine(script, tmp_path, monkeypatch):
    # The free memory of this machine must not matter.
    monkeypatch.setattr(engine_measures, "has_room", lambda model: True)
    engine = Engine(script, open_history=lambda: ReplyHistory(tmp_path / "state" / "speeds.json"))
    yield engine
    engine.close()


def test_a_loaded_model_has_facts_and_a_failed_one_has_none(engine, script):
    engine.load()
    facts = engine.engine_thread.state.figures.facts
    assert (facts.weights_bytes, facts.bytes_per_token, facts.kv_bytes_per_position) == (
        1_000_000,
        900_000,
        256,
    )
    assert facts.resident_weight_bytes() == 1_000_000
    script.open_error = GGUFError("bad")
    engine.chat_session.load(Path("bad.gguf"))
    engine.wait_for(ModelFailed)
    assert engine.engine_thread.state.figures == EngineFigures(
        faults=engine.engine_thread.state.figures.faults
    )


def test_the_phases_of_a_reply_add_up_to_its_time(engine, script):
    engine.load()
    sent_s = script.clock()
    script.clock.advance(3.0)
    engine.chat_session._ask("one two", sent_s=sent_s)
    engine.wait_for(GenerationFinished)
    engine.until(lambda: engine.engine_thread.state.figures.last_reply)
    spent = engine.engine_thread.state.figures.last_reply
    assert spent.waited_s == pytest.approx(3.0)
    assert spent.prefill_s == pytest.approx(0.1 * spent.prompt_tokens)
    assert spent.first_s == pytest.approx(0.5)
    assert spent.decode_s == pytest.approx(19 * 0.5)
    assert (spent.tokens, spent.reused_tokens) == (20, 0)
    assert spent.total_s == pytest.approx(script.clock() - sent_s)


def test_a_reply_is_compared_with_earlier_ones_only(engine, script):
    script.replies[:] = [LONG_REPLY]
    engine.load()
    assert engine.engine_thread.state.figures.earlier is None
    engine.ask("one")
    assert engine.engine_thread.state.figures.earlier is None
    engine.ask("two")
    assert engine.engine_thread.state.figures.earlier.n_replies == 1
    assert engine.engine_thread.state.figures.earlier.median_tps == pytest.approx(2.0)


def test_replies_are_compared_with_those_of_any_thread_count(engine, script):
    script.replies[:] = [LONG_REPLY]
    engine.load()
    engine.ask("one")
    script.opened[-1].set_threads(1)
    engine.ask("two")
    assert engine.engine_thread.state.figures.earlier.n_replies == 1
    assert engine.engine_thread.state.figures.earlier.usual.threads == 2


def test_a_reply_with_changed_threads_is_not_saved(engine, script):
    script.replies[:] = [LONG_REPLY]
    script.token_gate = Gate()
    engine.load()
    engine.chat_session.submit("one")
    script.token_gate.allow(3)
    assert script.token_gate.waiting.wait(PATIENCE_S)
    script.opened[-1].set_threads(1)
    script.token_gate.open()
    engine.wait_for(GenerationFinished)
    engine.ask("again")  # replies with any number of threads would count
    assert engine.engine_thread.state.figures.earlier is None


def test_every_reply_is_profiled_and_the_profile_ends_with_it(engine):
    engine.load()
    engine.ask("one")
    engine.until(lambda: engine.engine_thread.state.figures.last_reply)
    assert [
        (phase.name, phase.ms_per_token)
        for phase in engine.engine_thread.state.figures.decode_phases
    ] == [("feed-forward", 100.0)]
    assert not engine.session.profiler.is_running


def test_a_running_reply_is_profiled_only_while_watched(engine, script):
    script.token_gate = Gate()
    engine.load()
    for is_watched, phases in ((False, 0), (True, 1)):
        engine.engine_thread.inbox.is_watched = is_watched
        engine.engine_thread._outbox.update(
            figures=EngineFigures(engine.engine_thread.state.figures.facts)
        )
        engine.chat_session.submit("one")
        script.token_gate.allow(6)
        engine.until(script.token_gate.waiting.is_set)
        assert len(engine.engine_thread.state.figures.decode_phases) == phases
        engine.engine_thread.cancel()
        engine.wait_for(GenerationFinished)
        script.token_gate.waiting.clear()


def test_page_faults_count_for_the_token_they_delay(engine, script, monkeypatch):
    count = [0]
    monkeypatch.setattr(page_faults, "major_faults", lambda: count[0])
    script.token_gate = Gate()
    engine.load()
    engine.chat_session.submit("one")
    for permits, faults in ((5, 0), (1, 212), (1, 0)):
        engine.until(script.token_gate.waiting.is_set)
        count[0] += faults
        script.seconds_per_token = 5.0 if faults else 0.5
        script.token_gate.allow(permits)
    engine.until(script.token_gate.waiting.is_set)
    script.token_gate.open()
    engine.wait_for(GenerationFinished)
    engine.until(lambda: engine.engine_thread.state.figures.last_reply)
    assert engine.engine_thread.state.figures.faults.by_token() == {5: 212}
    assert engine.engine_thread.state.figures.last_reply.disk_pages == 212
    assert engine.engine_thread.state.figures.last_reply.disk_s == pytest.approx(4.5)


def test_bandwidth_is_measured_on_request_and_saved(engine, script, tmp_path):
    engine.load()
    assert engine.engine_thread.state.figures.read_gbps == {}
    engine.engine_thread.measure_bandwidth()
    engine.until(lambda: engine.engine_thread.state.figures.read_gbps)
    assert engine.engine_thread.state.figures.read_gbps == {2: 10.0}
    engine.load()
    assert engine.engine_thread.state.figures.read_gbps == {2: 10.0}
    assert script.n_bandwidth_probes == 1


def test_a_message_stops_the_measurement(engine, script):
    script.bandwidth_gate = Gate()
    engine.load()
    engine.engine_thread.measure_bandwidth()
    assert script.bandwidth_gate.waiting.wait(PATIENCE_S)
    engine.chat_session.submit("one")
    script.bandwidth_gate.open()
    engine.wait_for(GenerationFinished)
    assert engine.engine_thread.state.figures.read_gbps == {}
    assert script.n_bandwidth_probes == 0


def test_bandwidth_needs_a_model_and_free_memory(engine, script, monkeypatch):
    engine.engine_thread.measure_bandwidth()
    engine.load()
    monkeypatch.setattr(engine_measures, "has_room", lambda model: False)
    engine.engine_thread.measure_bandwidth()
    engine.ask("one")
    assert script.n_bandwidth_probes == 0
    assert engine.engine_thread.state.figures.read_gbps == {}


def test_the_machine_is_not_watched_without_a_model(script):
    watches = []
    engine = Engine(
        script, watch_conditions=lambda: watches.append(ConditionsWatch(None)) or watches[-1]
    )
    engine.engine_thread.measure_bandwidth()
    engine.engine_thread.reply(Request())
    engine.wait_for(GenerationFailed)
    assert engine.engine_thread.close(PATIENCE_S)
    assert not watches


def test_the_limit_of_a_container_counts_as_free_memory(script, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    monkeypatch.setattr(
        host, "_memory_groups", lambda root: iter([(2 << 30, (2 << 30) - (100 << 20))])
    )
    model = script.open_model("m.gguf", lambda progress: None)
    assert not engine_measures.has_room(model)


def test_an_error_in_the_measurement_does_not_end_a_turn(engine, script, monkeypatch):
    engine.load()
    monkeypatch.setattr(engine_measures, "has_room", lambda model: 1 // 0)
    engine.engine_thread.measure_bandwidth()
    engine.ask("one")
    assert [
        type(message).__name__ for message in engine.messages if "Failed" in type(message).__name__
    ] == []


def test_a_stopped_prompt_spent_all_its_time_in_prefill():
    clock = FakeClock()
    meter = ReplyMeter(100, clock)
    meter.read_tokens = 40
    meter.prefill_s = 4.0
    spent = time_spent(meter, EngineFigures(), meter.started_s - 2.0, meter.started_s + 4.5)
    assert (spent.waited_s, spent.prefill_s, spent.decode_s, spent.tokens) == (2.0, 4.5, 0.0, 0)
    assert spent.total_s == pytest.approx(6.5)


def test_phases_with_one_name_in_two_plans_are_joined():
    class Phase:
        def __init__(self, phase: str, seconds: float, weight_bytes: int) -> None:
            self.phase = phase
            self.seconds = seconds
            self.weight_bytes = weight_bytes

    costs = phase_costs(
        [[Phase("norms", 1.0, 0), Phase("qkv", 2.0, 10**9)], [Phase("norms", 1.0, 0)]], 100
    )
    assert [(cost.name, cost.ms_per_token, cost.share, cost.gbps) for cost in costs] == [
        ("norms", 20.0, 0.5, None),
        ("qkv", 20.0, 0.5, 0.5),
    ]
    assert phase_costs([], 0) == ()


def test_the_engine_thread_starts_without_figures(script):
    engine_thread = EngineThread(
        ChatOptions(script.open_model, lambda chosen, model, mode: None), script.clock
    )
    assert engine_thread.state.figures.facts is None
    assert engine_thread.state.figures.last_reply is None
    assert engine_thread.now_s() == script.clock()


def test_the_reply_after_kept_tuning_has_a_mark(engine, script, monkeypatch):
    saved = []
    monkeypatch.setattr(
        engine_access, "remember_tuned", lambda model, choice, conditions: saved.append(choice)
    )
    script.replies[:] = [LONG_REPLY]
    engine.load()
    engine.ask("one")
    in_use = engine.engine_thread.state.threads
    choice = TunedChoice(1, 1)
    engine.engine_thread.request_threads(replace(in_use, now=choice, remembered=choice))
    engine.until(lambda: saved)
    engine.ask("two")
    engine.ask("three")
    engine.until(lambda: len(engine.engine_thread.state.figures.daily.replies) == 3)
    replies = engine.engine_thread.state.figures.daily.replies
    assert [reply.marks for reply in replies] == [(), (Mark.TUNED, Mark.THREADS), ()]
    assert saved == [choice]

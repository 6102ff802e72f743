"""The sweep: order, dropped settings, end, cancellation, pinning, and reasons for the winner."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from engine.machine.topology import Cores
from engine.tuning.reasons import explain
from engine.tuning.report import Curve, Point, TuningReport
from engine.tuning.statistics import Interval
from engine.tuning.sweep import Sweep, counts_to_try
from tests.engine.scripted_trials import ScriptedTrials

LAPTOP = Cores((0, 1, 2, 3), 2, None)
"""Machine with two cores and four threads."""
LAPTOP_TPS = {
    "decode": {1: 3.0, 2: 5.1, 3: 4.7, 4: 4.5},
    "prefill": {1: 4.9, 2: 9.2, 3: 9.6, 4: 10.3},
}


def steady(phase: str, n_threads: int, pinned: bool, n_samples: int) -> float:
    return LAPTOP_TPS[phase][n_threads]


def run(
    trials: ScriptedTrials, cores: Cores = LAPTOP, budget_s: float = 60.0
) -> list[TuningReport]:
    return list(Sweep(trials, cores, budget_s, trials.clock))


def test_passes_alternate_and_drop_clearly_slower_counts() -> None:
    trials = ScriptedTrials(steady, sizes={"decode": 4})
    run(trials)
    counts = [n for _, n, _ in trials.taken]
    assert counts[:8] == [2, 1, 3, 4, 4, 3, 1, 2]
    assert 1 not in counts[8:]
    # After five passes there are intervals, and they do not overlap.
    assert counts[8:] == [2, 3, 4, 4, 3, 2, 2, 3, 4]


def test_the_expected_time_left_comes_true() -> None:
    reports = run(ScriptedTrials(steady), budget_s=600.0)
    end_s = reports[-1].elapsed_s
    assert reports[0].expected_left_s == 0.0
    assert reports[-1].expected_left_s == 0.0
    for report in reports[4:-1:4]:
        assert report.expected_left_s == pytest.approx(end_s - report.elapsed_s, rel=0.5, abs=8.0)


def test_decode_and_prefill_have_their_own_winners() -> None:
    last = run(ScriptedTrials(steady))[-1]
    assert (last.best("decode"), last.best("prefill")) == (2, 4)
    assert last.state == "done"
    assert last.is_over
    assert last.reasons == (
        "2 threads write fastest: this CPU has 2 cores; the other 2 are their siblings and "
        "share the same memory "
        "bandwidth.",
        (
            "4 threads read the prompt fastest: that is arithmetic, and two siblings fill each "
            "other's pauses."
        ),
    )


def test_reports_grow_sample_by_sample_and_name_what_is_measured() -> None:
    reports = run(ScriptedTrials(steady))
    assert reports[0].curves == ()
    assert reports[1].measuring == "decode, 2 threads"
    decode = reports[1].curve("decode")
    assert decode is not None
    assert [point.tps is not None for point in decode.points] == [False, True, False, False]
    assert all(not report.reasons for report in reports[:-1])
    assert [r.elapsed_s for r in reports] == sorted(r.elapsed_s for r in reports)
    assert reports[1].seconds_left == 60.0 - reports[1].elapsed_s


def test_a_sweep_out_of_time_ends_and_says_it_is_not_certain() -> None:
    trials = ScriptedTrials(steady, sample_s=4.0)
    last = run(trials, budget_s=30.0)[-1]
    assert last.state == "unsure"
    assert last.elapsed_s <= 30.0
    assert last.best("decode") == 2
    assert all("not certain" in reason for reason in last.reasons)


def test_a_cancel_keeps_what_was_measured_and_restores_the_model() -> None:
    trials = ScriptedTrials(steady)
    trials.cancel_after = 3
    reports = run(trials)
    assert reports[-1].state == "stopped"
    assert reports[-1].best("decode") == 2
    assert trials.n_restored == 1


def test_a_cancel_between_two_samples_takes_effect() -> None:
    trials = ScriptedTrials(steady)
    sweep = Sweep(trials, LAPTOP, 60.0, trials.clock)
    reports = []
    for report in sweep:
        reports.append(report)
        if len(reports) == 3:
            sweep.cancel()
    assert trials.is_cancelled
    assert len(trials.taken) == 2
    assert reports[-1].state == "stopped"


def test_an_error_passes_through_and_the_model_is_restored() -> None:
    def fail(phase: str, n_threads: int, pinned: bool, n_samples: int) -> float:
        raise ValueError("broken")

    trials = ScriptedTrials(fail)
    with pytest.raises(ValueError, match="broken"):
        run(trials)
    assert trials.n_restored == 1


def test_noise_between_neighbours_keeps_the_smaller_count() -> None:
    def noisy(phase: str, n_threads: int, pinned: bool, n_samples: int) -> float:
        return {1: 2.0, 2: 5.0, 3: 5.02, 4: 5.01}[n_threads] * (
            1 + 0.04 * ((n_samples * 7) % 5 - 2) / 2
        )

    last = run(ScriptedTrials(noisy))[-1]
    assert (last.best("decode"), last.best("prefill")) == (2, 2)


def test_a_phase_without_room_is_not_measured() -> None:
    trials = ScriptedTrials(steady, sizes={"decode": 4, "prefill": 0})
    trials.notes = ("reading a prompt is not measured: no room",)
    last = run(trials)[-1]
    assert [curve.phase for curve in last.curves] == ["decode"]
    assert last.notes == trials.notes
    empty = run(ScriptedTrials(steady, sizes={"decode": 0, "prefill": 0}))[-1]
    assert empty.curves == ()
    assert empty.best("decode") is None


@pytest.mark.parametrize(("gain", "verdict"), [(1.10, True), (1.01, False), (0.8, False)])
def test_pinning_is_tried_at_the_best_counts_and_kept_for_a_gain(
    gain: float, verdict: bool
) -> None:
    trials = ScriptedTrials(
        lambda phase, n, pinned, n_samples: LAPTOP_TPS[phase][n] * (gain if pinned else 1.0)
    )
    trials.can_pin = True
    last = run(trials)[-1]
    assert last.pinned is verdict
    decode = last.curve("decode")
    assert decode is not None
    assert decode.pinned_gain is not None
    assert decode.pinned_gain.median == pytest.approx(gain)
    assert {(phase, n) for phase, n, pinned in trials.taken if pinned} == {
        ("decode", 2),
        ("prefill", 4),
    }


def test_pinning_that_hurts_one_phase_is_not_kept() -> None:
    gains = {"decode": 1.2, "prefill": 0.9}
    trials = ScriptedTrials(
        lambda phase, n, pinned, n_samples: LAPTOP_TPS[phase][n] * (gains[phase] if pinned else 1.0)
    )
    trials.can_pin = True
    assert run(trials)[-1].pinned is False


def test_a_single_thread_has_nothing_to_pin() -> None:
    trials = ScriptedTrials(lambda phase, n, pinned, n_samples: 1.0 / n)
    trials.can_pin = True
    last = run(trials)[-1]
    assert last.pinned is None
    assert (last.best("decode"), last.best("prefill")) == (1, 1)


@pytest.mark.parametrize(
    ("cores", "counts"),
    [
        (LAPTOP, [1, 2, 3, 4]),
        (Cores((0,), 1, None), [1]),
        (Cores(tuple(range(8)), 8, 2), [1, 2, 3]),
        (Cores(tuple(range(20)), 12, None, 4), [1, 2, 3, 4, 6, 8, 12, 16, 20]),
        (Cores(tuple(range(36)), 18, None), [1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 32, 36]),
    ],
)
def test_all_counts_are_tried_on_small_machines_some_on_large(
    cores: Cores, counts: list[int]
) -> None:
    assert counts_to_try(cores) == counts


# ---- the sentence


def curve(
    phase: str, best: int, most: int, fastest: int | None = None, is_settled: bool = True
) -> Curve:
    tps = Interval(5.0, 4.9, 5.1, 6, True)
    points = tuple(Point(n, "core", tps, False) for n in range(1, most + 1))
    gain = Interval(1.01, 0.99, 1.04, 6, True) if fastest else None
    return Curve(phase, points, best, fastest or best, gain, is_settled, 4)


HYBRID = Cores(tuple(range(20)), 12, None, 4)
VM = Cores((0, 1, 2, 3), 4, None)


@pytest.mark.parametrize(
    ("phase", "best", "cores", "phrase"),
    [
        (
            "decode",
            2,
            LAPTOP,
            "2 threads write fastest: this CPU has 2 cores; the other 2 are their siblings",
        ),
        ("prefill", 2, LAPTOP, "siblings and share the same units of arithmetic"),
        ("prefill", 4, LAPTOP, "siblings fill each other's pauses"),
        ("decode", 3, LAPTOP, "siblings help here"),
        (
            "decode",
            1,
            LAPTOP,
            "1 thread writes fastest: more would probably only wait for the memory",
        ),
        (
            "decode",
            1,
            Cores((0, 1), 1, None),
            "this CPU has 1 core; the other 1 is its sibling and shares the same",
        ),
        (
            "decode",
            8,
            HYBRID,
            "this CPU has 8 fast cores; its 4 efficiency cores would hold them up",
        ),
        ("prefill", 10, HYBRID, "2 of the 4 efficiency cores help"),
        ("decode", 12, HYBRID, "this CPU has 12 cores; the other 8 are their siblings"),
        ("decode", 4, VM, "4 threads write fastest: one on each of the 4 cores"),
        ("prefill", 3, VM, "further threads brought nothing"),
        ("decode", 2, Cores((0, 1, 2, 3), 4, 2), "the control group grants this process 2 CPUs"),
        ("prefill", 1, Cores((0, 1, 2, 3), 4, 1), "the control group grants this process 1 CPU,"),
        (
            "decode",
            3,
            Cores((0, 1, 2, 3), 4, 2),
            "one more than the control group's 2 CPUs proved faster",
        ),
        (
            "decode",
            2,
            Cores((0, 1, 2, 3), 2, 2),
            "this CPU has 2 cores; the other 2 are their siblings",
        ),
    ],
)
def test_the_winner_is_explained_by_the_machine(
    phase: str, best: int, cores: Cores, phrase: str
) -> None:
    sentence = explain(curve(phase, best, cores.most_threads), cores)
    assert phrase in sentence
    assert sentence.endswith(".")


def test_a_winner_that_others_barely_beat_is_called_enough() -> None:
    sentence = explain(curve("decode", 2, 4, fastest=3), LAPTOP)
    assert sentence.startswith(
        "2 threads are enough for writing: 3 were faster by too little to count (+1 %)"
    )


def test_no_gain_is_claimed_for_a_leader_slower_in_most_passes() -> None:
    slower = replace(curve("decode", 2, 4, fastest=3), gain=Interval(0.98, 0.95, 1.05, 3, False))
    assert "by too little to count, and fewer" in explain(slower, LAPTOP)


def test_a_winner_that_is_not_settled_is_called_uncertain() -> None:
    close = curve("decode", 2, 4, is_settled=False)
    assert explain(close, LAPTOP) == "Too close to call for writing: 1, 2, 3 or 4 threads."
    points = tuple(replace(point, is_dropped=point.n_threads != 2) for point in close.points)
    assert explain(replace(close, points=points), LAPTOP).endswith("when nothing else runs.")


def test_other_programs_explain_few_threads_if_they_took_a_core() -> None:
    crowded = explain(curve("decode", 1, 4), LAPTOP, others_cores=1.2)
    assert crowded.startswith("1 thread writes fastest. Unreliable: other programs used 1.2 cores")
    assert "other programs" not in explain(curve("decode", 2, 4), LAPTOP, others_cores=1.2)
    assert "other programs" not in explain(curve("decode", 1, 4), LAPTOP)


def test_one_cpu_needs_no_measurement() -> None:
    assert (
        explain(curve("decode", 1, 1), Cores((0,), 1, None))
        == "1 thread: this process may use one CPU only."
    )


# ---- on a real session


def test_a_sweep_on_a_session_does_not_change_its_conversation(tmp_path: Path) -> None:
    from engine import Model, Sampling
    from engine.tuning.trials import SessionTrials
    from tests.engine import tiny_gguf

    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "llama", "F32", context_length=512), threads=1
    )
    used = model.session(n_ctx=256)
    fresh = model.session(n_ctx=256)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    for session in (used, fresh):
        session.prefill(prompt)
    trials = SessionTrials(model, used)
    ticks = count()  # the number of samples does not depend on the machine's speed
    last = list(
        Sweep(trials, Cores((0, 1), 2, None), budget_s=100, clock=lambda: float(next(ticks)))
    )[-1]
    assert last.is_over
    assert last.best("decode") in (1, 2)
    assert last.n_context == len(prompt)
    assert used.tokens == prompt
    assert (model.threads, model.prefill_threads, model.pinned) == (1, 1, False)
    texts = [[g.token_id for g in s.generate(Sampling.greedy(), 20)] for s in (used, fresh)]
    assert texts[0] == texts[1]
    assert (used.feed([5]) == fresh.feed([5])).all()
    model.close()


def test_a_cancel_from_another_thread_stops_a_sweep_on_a_session(tmp_path: Path) -> None:
    import threading

    from engine import Model
    from engine.tuning.trials import SessionTrials
    from tests.engine import tiny_gguf

    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "llama", "F32", context_length=512), threads=1
    )
    session = model.session(n_ctx=256)
    session.prefill([1, 2, 3])
    sweep = Sweep(SessionTrials(model, session), Cores((0, 1), 2, None), budget_s=600.0)
    states = []
    for report in sweep:
        states.append(report.state)
        if len(states) == 3:
            canceller = threading.Thread(target=sweep.cancel)
            canceller.start()
            canceller.join()
    assert states[-1] == "stopped"
    assert session.tokens == [1, 2, 3]
    model.close()


def test_a_context_with_little_room_is_measured_with_few_tokens(tmp_path: Path) -> None:
    from engine import Model
    from engine.tuning.trials import SessionTrials
    from tests.engine import tiny_gguf

    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "llama", "F32", context_length=512), threads=1
    )
    for n_tokens, decode, prefill, note in (
        (10, 2, 16, ""),
        (55, 2, 0, "reading a prompt"),
        (63, 0, 0, "nothing"),
    ):
        session = model.session(n_ctx=64)
        session.prefill([3] * n_tokens)
        trials = SessionTrials(model, session)
        trials.prepare()
        assert decode <= trials.n_tokens("decode") <= max(0, 63 - n_tokens)
        assert prefill <= trials.n_tokens("prefill") <= 64 - n_tokens
        assert note in "".join(trials.notes)
        assert bool(note) == bool(trials.notes)
        assert session.length == n_tokens
        session.close()
    model.close()

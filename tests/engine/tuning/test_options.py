"""Ways to store weights, keys and values: what is measured, and when and why an option is
recommended."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Model, Sampling
from engine.errors import Cancelled, MemoryPlanError
from engine.machine import host
from engine.machine.memory import gives_huge_pages
from engine.machine.topology import Cores
from engine.tuning.fill_cache import fill_cache
from engine.tuning.report import COUNTS, KV, PINNING, WEIGHTS, Comparison, TuningReport
from engine.tuning.sweep import Sweep, default_budget_s
from engine.tuning.trials import KVTrials, SessionTrials, WeightTrials
from tests.engine import tiny_gguf
from tests.engine.scripted_trials import ScriptedOptions, ScriptedTrials

LAPTOP = Cores((0, 1, 2, 3), 2, None)
TPS = {1: 3.0, 2: 5.1, 3: 4.7, 4: 4.5}
ALL = (COUNTS, PINNING, WEIGHTS)


def scripted(
    gain: float = 1.12,
    prefill_gain: float = 1.0,
    present: str = "mmap",
    noise: Callable[[int], float] = lambda n_samples: 1.0,
) -> tuple[ScriptedTrials, ScriptedOptions]:
    trials = ScriptedTrials(
        lambda phase, n, pinned, n_samples: TPS[n] if phase == "decode" else 2 * n
    )
    gains = {"decode": gain, "prefill": prefill_gain}

    def rate(phase: str, option: str, n_samples: int) -> float:
        return 5.0 * (gains[phase] if option == "huge" else 1.0) * noise(n_samples)

    return trials, ScriptedOptions(trials, WEIGHTS, ("mmap", "huge"), present, rate)


def run(
    trials: ScriptedTrials, parts: tuple[str, ...] = ALL, earlier: TuningReport | None = None
) -> TuningReport:
    sweep = Sweep(trials, LAPTOP, clock=trials.clock, parts=parts, earlier=earlier)
    return list(sweep)[-1]


def weights_of(report: TuningReport) -> Comparison:
    comparison = report.comparison(WEIGHTS)
    assert comparison is not None
    return comparison


def test_options_are_measured_in_turn_with_the_best_counts() -> None:
    trials, options = scripted()
    run(trials)
    decode = [option for phase, option, _, _ in options.taken if phase == "decode"]
    assert decode[:4] == ["mmap", "huge", "huge", "mmap"]
    assert {(phase, n) for phase, _, n, _ in options.taken} == {("decode", 2), ("prefill", 4)}
    assert (options.n_opened, options.n_closed) == (1, 1)
    assert len(decode) == 10  # five passes make an interval, and it separates


def test_a_certain_gain_is_recommended_with_its_memory_cost() -> None:
    trials, _ = scripted()
    comparison = weights_of(run(trials))
    assert comparison.best == "huge"
    assert comparison.is_settled
    assert comparison.reason == (
        "With weights in huge pages this model writes 12 % faster (12 to 12) "
        "(uses 2.0 GB more memory)."
    )


@pytest.mark.parametrize(
    ("gain", "phrase"),
    [
        (
            1.02,
            "huge pages brought too little to count (writing +2 %, 2 to 2; reading +0 %, 0 to 0)",
        ),
        (1.0, "huge pages brought no gain (writing +0 %, 0 to 0; reading +0 %, 0 to 0)"),
        (0.9, "huge pages proved slower (writing -10 %, -10 to -10)"),
    ],
)
def test_a_small_gain_or_a_loss_is_not_recommended(gain: float, phrase: str) -> None:
    trials, _ = scripted(gain)
    comparison = weights_of(run(trials))
    assert comparison.best == "mmap"
    assert phrase in comparison.reason


def test_an_uncertain_gain_is_not_recommended() -> None:
    trials, options = scripted()
    huge = [5.0, 6.5, 6.4, 4.9, 6.6, 6.5, 4.8, 6.3, 6.6, 4.9, 6.4, 6.5]
    passes = iter(huge)
    options._rate = lambda phase, option, n_samples: (
        next(passes) if (phase, option) == ("decode", "huge") else 5.0
    )
    comparison = weights_of(run(trials))
    gain = comparison.options[1].gain["decode"]
    assert gain.median > 1.25
    assert gain.low <= 1
    assert comparison.best == "mmap"
    assert not comparison.is_settled
    assert "no gain that is certain" in comparison.reason
    assert comparison.reason.endswith("This is not certain yet.")


def test_a_gain_in_only_a_few_passes_is_not_recommended() -> None:
    trials, options = scripted(1.5)
    options.step_s = 20.0  # copying leaves time for two passes
    comparison = weights_of(list(Sweep(trials, LAPTOP, 44.0, trials.clock, (WEIGHTS,)))[-1])
    gain = comparison.options[1].gain["decode"]
    assert gain.median == pytest.approx(1.5)
    assert not gain.is_sure
    assert comparison.best == "mmap"


def test_a_gain_in_one_phase_at_a_loss_in_the_other_is_no_advice() -> None:
    trials, _ = scripted(1.2, prefill_gain=0.9)
    assert weights_of(run(trials)).best == "mmap"


def test_mmap_replaces_huge_pages_only_for_a_gain() -> None:
    trials, _ = scripted(0.9, prefill_gain=0.9, present="huge")
    comparison = weights_of(run(trials))
    assert comparison.best == "mmap"
    assert "uses no extra memory" in comparison.reason
    trials, _ = scripted(1.0, present="huge")
    comparison = weights_of(run(trials))
    assert comparison.best == "huge"
    assert "Mapping would use 2.0 GB less memory" in comparison.reason


def test_the_estimate_comes_first_and_preparing_is_reported() -> None:
    trials, _ = scripted()
    sweep = Sweep(trials, LAPTOP, clock=trials.clock, parts=ALL)
    prepared: list[TuningReport] = []
    sweep.on_preparing = prepared.append
    first = next(iter(sweep))
    assert weights_of(first).estimate == "a copy of 2.0 GB; 4.0 GB are available"
    assert weights_of(first).reason == ""
    list(sweep)
    assert [report.preparing for report in prepared] == ["copying: 1 of 2", "copying: 2 of 2"]


def test_options_that_do_not_fit_are_left_out_and_not_opened() -> None:
    trials, options = scripted()
    options.options = ("mmap",)
    options.left_out = "huge pages are not tried: both at once do not fit into memory"
    last = run(trials)
    comparison = weights_of(last)
    assert options.n_opened == 0
    assert (comparison.best, comparison.left_out, comparison.reason) == (
        "mmap",
        options.left_out,
        "",
    )
    assert last.state == "done"


def test_memory_refused_on_opening_is_reported() -> None:
    trials, options = scripted()
    options.open_error = MemoryPlanError("the system gives no 2.0 GB of memory")
    last = run(trials)
    assert weights_of(last).left_out == "not tried: the system gives no 2.0 GB of memory"
    assert last.state == "done"
    assert options.n_closed == 1


def test_preparing_ends_when_the_time_is_up() -> None:
    trials, options = scripted()
    options.steps = ["copying"] * 1000
    options.step_s = 1.0
    last = run(trials)
    assert "the time was up" in weights_of(last).left_out
    assert last.elapsed_s <= default_budget_s(ALL) + 1.0
    assert options.n_closed == 1


def test_the_whole_search_stays_within_its_time() -> None:
    trials, options = scripted(noise=lambda n_samples: 1.0 + 0.1 * (n_samples % 3))
    sweep = Sweep(trials, LAPTOP, 20.0, trials.clock, ALL)
    last = list(sweep)[-1]
    assert last.elapsed_s <= 20.5
    assert options.taken
    assert options.n_closed == 1


@pytest.mark.parametrize("moment", ["preparing", "measuring", "between"])
def test_a_stop_at_any_moment_closes_the_trials(moment: str) -> None:
    trials, options = scripted()
    sweep = Sweep(trials, LAPTOP, clock=trials.clock, parts=(WEIGHTS,))
    if moment == "preparing":
        sweep.on_preparing = lambda report: sweep.cancel()
    if moment == "measuring":
        options.cancel_after = 3
    reports = []
    for report in sweep:
        reports.append(report)
        if moment == "between" and len(options.taken) == 3:
            sweep.cancel()
    assert reports[-1].state == "stopped"
    assert (options.n_opened, options.n_closed) == (1, 1)
    assert weights_of(reports[-1]).best == "mmap"


def test_a_later_sweep_keeps_the_results_of_an_earlier_one() -> None:
    trials, _ = scripted()
    earlier = run(trials)
    later = ScriptedTrials(lambda *_: 1.0)
    options = ScriptedOptions(
        later, KV, ("q8_0", "f16", "f32"), "f16", lambda phase, name, n_samples: len(name)
    )
    last = run(later, (KV,), earlier)
    assert later.taken == []
    assert last.curves == earlier.curves
    assert last.reasons == earlier.reasons
    assert [comparison.part for comparison in last.comparisons] == [WEIGHTS, KV]
    assert {(phase, n) for phase, _, n, _ in options.taken} == {("decode", 2), ("prefill", 4)}
    comparison = last.comparison(KV)
    assert comparison is not None
    assert comparison.best == "q8_0"
    assert comparison.reason == (
        "A KV cache of q8_0 writes 33 % faster (33 to 33) and reads the prompt 33 % faster "
        "(33 to 33) with 2,048 "
        "tokens in the context; it takes 160 MB of memory instead of 300 MB."
    )


def test_of_equally_fast_options_the_smaller_is_recommended() -> None:
    trials = ScriptedTrials(lambda *_: 1.0)
    rates = {"q8_0": 5.5, "f16": 5.0, "f32": 5.52}
    ScriptedOptions(
        trials, KV, ("q8_0", "f16", "f32"), "f16", lambda phase, name, n_samples: rates[name]
    )
    comparison = run(trials, (KV,)).comparison(KV)
    assert comparison is not None
    assert comparison.best == "q8_0"


def test_a_remark_follows_the_reason() -> None:
    trials, options = scripted(1.0)
    options.said = "The system gave huge pages for only 3 % of the copy."
    assert weights_of(run(trials)).reason.endswith("only 3 % of the copy.")


# ---- on a real model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr("engine.tuning.trials.gives_huge_pages", lambda: True)
    path = tiny_gguf.write(tmp_path / "m.gguf", "llama", "F32", context_length=1024, head_dim=32)
    return Model.open(path, threads=1)


def quiet(text: str) -> None:
    pass


def test_moving_the_weights_does_not_change_the_text(model: Model) -> None:
    moved = model.session(n_ctx=64)
    fresh = model.session(n_ctx=64)
    for session in (moved, fresh):
        session.prefill([1, 2, 3, 4, 5])
    expected = [generated.token_id for generated in fresh.generate(Sampling.greedy(), 6)]
    tokens = []
    for generated in moved.generate(Sampling.greedy(), 6):
        tokens.append(generated.token_id)
        model.use_weights("huge" if len(tokens) % 2 else "mmap")
    assert tokens == expected
    model.close()


def test_the_copy_is_freed_when_the_map_is_used_again(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3])
    model.use_weights("huge")
    assert model.weights_mode == "huge"
    copy = weakref.ref(model._weights._memory)
    session.feed([4, 5])
    model.use_weights("mmap", keep_copy=True)
    assert copy() is not None
    model.use_weights("mmap")
    gc.collect()
    assert copy() is None
    session.feed([6])
    model.close()


def test_a_cancelled_copy_changes_nothing(model: Model) -> None:
    def stop(progress: object) -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        model.use_weights("huge", stop)
    assert model.weights_mode == "mmap"
    assert model.room_for_both_modes().needed_bytes > 2 * model.weights_bytes
    model.close()


@pytest.mark.parametrize("present", ["mmap", "huge"])
def test_comparing_weights_does_not_change_the_conversation(model: Model, present: str) -> None:
    session = model.session(n_ctx=256)
    session.prefill([1, 2, 3])
    model.use_weights(present)
    sweep = Sweep(
        SessionTrials(model, session), Cores((0,), 1, None), 300.0, parts=(COUNTS, WEIGHTS)
    )
    last = list(sweep)[-1]
    comparison = weights_of(last)
    assert comparison.is_measured
    assert comparison.present == model.weights_mode == present
    assert session.tokens == [1, 2, 3]
    assert model.room_for_both_modes().copy_bytes == model.weights_bytes
    if present == "mmap":
        assert model._modes._copied is None
    model.close()


def test_without_memory_for_both_modes_nothing_is_copied(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session(n_ctx=256)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: 2 * model.weights_bytes)
    trials = WeightTrials(model, SessionTrials(model, session))
    assert trials.options == ("mmap",)
    assert "do not fit" in trials.left_out
    assert "are available" in trials.estimate
    model.close()


def test_where_huge_pages_are_switched_off_nothing_is_copied(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tuning.trials.gives_huge_pages", lambda: False)
    trials = WeightTrials(model, SessionTrials(model, model.session(n_ctx=256)))
    assert trials.options == ("mmap",)
    assert "this system gives none" in trials.left_out
    model.close()


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", True),
        ("always madvise [never]", False),
    ],
)
def test_the_system_setting_for_huge_pages_is_read(tmp_path: Path, text: str, gives: bool) -> None:
    (tmp_path / "enabled").write_text(text)
    assert gives_huge_pages(tmp_path / "enabled") is gives


def test_kv_types_are_compared_in_separate_sessions_then_closed(model: Model) -> None:
    session = model.session(n_ctx=1024)
    session.prefill([1, 2, 3])
    prepared: list[str] = []
    sweep = Sweep(SessionTrials(model, session), Cores((0,), 1, None), 300.0, parts=(KV,))
    sweep.on_preparing = lambda report: prepared.append(report.preparing)
    last = list(sweep)[-1]
    comparison = last.comparison(KV)
    assert comparison is not None
    assert comparison.n_context == 512
    assert comparison.is_measured
    assert any(text.startswith("filling a cache of f16 with 512 tokens") for text in prepared)
    assert session.tokens == [1, 2, 3]
    assert model._sessions == [session]
    assert (model.threads, model.pinned) == (1, False)
    model.close()


def test_with_little_memory_f32_is_left_out_first(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session(n_ctx=1024, kv="q8_0")
    roomy = KVTrials(model, session)
    assert list(roomy.options) == ["q8_0", "f16", "f32"]
    names = list(roomy.options)
    filled = roomy.n_context
    base = model.weights_bytes + (300 << 20)
    without_f32 = base + roomy._needed_bytes(filled, [name for name in names if name != "f32"])
    monkeypatch.setattr(host, "available_memory_bytes", lambda: without_f32)
    small = KVTrials(model, session)
    assert "f32" not in small.options
    assert small.left_out.startswith("f32 is not tried")
    monkeypatch.setattr(host, "available_memory_bytes", lambda: base)
    none = KVTrials(model, session)
    assert list(none.options) == ["q8_0"]
    assert "do not fit" in none.left_out
    monkeypatch.undo()
    short = KVTrials(model, model.session(n_ctx=64))
    assert "hardly matter" in short.left_out
    model.close()


@pytest.mark.parametrize("kv", ["f16", "f32", "q8_0", "q4_0"])
def test_a_filled_cache_repeats_its_keys_and_values(tmp_path: Path, kv: str) -> None:
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "llama", "F32", context_length=256, head_dim=32),
        threads=1,
    )
    session = model.session(n_ctx=128, kv=kv)
    session.prefill(list(range(1, 17)))
    cache = session.pipeline._cache
    keys = cache.layers[0].keys
    earlier_bytes = cache._memory.bytes.copy()
    with session.restoring():
        fill_cache(session, 104)
        assert session.length == 104
        heads = keys.elements[0]
        position_bytes = keys.head_bytes // cache.max_seq_len
        assert heads.any()
        for start in range(16, 104, 16):
            n = min(16, 104 - start) * position_bytes
            assert (heads[start * position_bytes : start * position_bytes + n] == heads[:n]).all()
        assert not heads[104 * position_bytes :].any()
        session.feed([3])
    assert session.tokens == list(range(1, 17))
    prompt_bytes = keys.elements[0].reshape(-1)[: 16 * position_bytes]
    assert (prompt_bytes == earlier_bytes[: 16 * position_bytes]).all()
    model.close()

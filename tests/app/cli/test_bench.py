import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.backend.local import engine_access
from app.cli import bench as bench_module
from app.cli.bench import BenchOptions, bench
from app.machine.sensors.reply_history import READ_GBPS, ReplyHistory, rates_key
from app.machine.sensors.speed_causes import Cause
from app.machine.sensors.tuning_conditions import Conditions
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine.errors import BrokenModelError, EngineError
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Scripted engine with one model and no starter model."""
    monkeypatch.setattr(bench_module, "starter_file", lambda: None)
    monkeypatch.setattr(bench_module, "machine_causes", lambda *samples, **rates: [])
    return use_script(monkeypatch, Script(replies=[["It is", " Paris."]]))


@pytest.fixture
def with_starter(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Scripted engine that opens the starter model second."""
    monkeypatch.setattr(bench_module, "starter_file", lambda: Path("starter.gguf"))
    return script


def reports(
    script: Script, capsys: pytest.CaptureFixture[str], **options: Any
) -> list[dict[str, Any]]:
    options = {
        "thread_counts": (1, 2),
        "n_prompt": 8,
        "n_gen": 3,
        "rounds": 2,
        "as_json": True,
        **options,
    }
    assert (
        bench(BenchOptions("m.gguf", **options), built_in_settings(), script.clock) == exit_codes.OK
    )
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_thread_count_is_one_json_object_with_both_lists(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = reports(script, capsys)
    assert (first["threads"], second["threads"]) == (1, 2)
    assert first["prefill_tps"] == pytest.approx([10.0, 10.0])
    # a token fed one by one costs as much in the script
    assert first["decode_tps"] == pytest.approx([10.0, 10.0])
    assert (first["quantization"], first["weights"], first["n_prompt"], first["n_gen"]) == (
        "Q4_K_M",
        "mmap",
        8,
        3,
    )
    assert {"python", "numba", "numpy", "llvmlite"} <= set(first["versions"])
    assert (first["gate"], first["kernels"], first["cpu"]) == ("passed", "passed", "avx2")
    assert first["starter_gate"] == "not installed"


def test_each_round_and_the_warm_up_is_a_prompt_then_tokens(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    reports(script, capsys, thread_counts=(2,))
    measured = script.opened[0].sessions[-1]
    assert measured.fed_counts == [8, 1, 1, 1] * 3
    assert measured.n_ctx == 11
    assert measured.is_closed


def test_warnings_of_the_session_are_printed(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.session_notices = ("the context is longer than the trained one",)
    options = BenchOptions(
        "m.gguf", thread_counts=(1,), n_prompt=8, n_gen=3, rounds=1, as_json=True
    )
    assert bench(options, built_in_settings(), script.clock) == exit_codes.OK
    captured = capsys.readouterr()
    assert captured.err.count("jalopy bench: the context is longer than the trained one\n") == 1
    assert json.loads(captured.out)["kv_type"] == "f16"


def test_a_model_is_measured_with_its_adapters(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(built_in_settings(), adapters=("/x/a.gguf:0.5",))
    options = {"thread_counts": (1,), "rounds": 1}
    assert (
        bench(BenchOptions("m.gguf", as_json=True, **options), settings, script.clock)
        == exit_codes.OK
    )
    assert json.loads(capsys.readouterr().out)["adapters"] == ["/x/a.gguf:0.5"]
    assert bench(BenchOptions("m.gguf", **options), settings, script.clock) == exit_codes.OK
    assert "m · adapter a.gguf:0.5 · Q4_K_M" in capsys.readouterr().out
    assert [model.adapter_calls for model in script.opened] == [[[("a.gguf", 0.5)]]] * 2


def test_thread_counts_are_from_the_options_or_the_model(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [report["threads"] for report in reports(script, capsys, thread_counts=())] == [2]
    reports(script, capsys, thread_counts=(3,))
    assert (script.opened[1].threads, script.opened[1].prefill_threads) == (3, 3)


@pytest.mark.parametrize(
    ("reply", "verdict"), [(["Paris"], "passed"), (["zyx"], "failed"), ([], "failed")]
)
def test_the_known_answer_is_reported_and_never_stops_the_bench(
    script: Script, capsys: pytest.CaptureFixture[str], reply: list[str], verdict: str
) -> None:
    script.replies = [reply]
    report = reports(script, capsys, thread_counts=(1,))[0]
    assert report["gate"] == verdict
    assert len(report["decode_tps"]) == 2


def test_a_model_without_a_template_gets_no_question(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.has_template = False
    assert reports(script, capsys, thread_counts=(1,))[0]["gate"] == "not a chat model"
    assert len(script.opened[0].sessions) == 1


def test_an_error_at_the_question_fails_the_gate_with_a_reason(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.generate_error = BrokenModelError("m.gguf: NaN")
    script.fail_after_tokens = 0
    options = BenchOptions("m.gguf", (1,), 8, 3, 2, True)
    bench(options, built_in_settings(), script.clock)
    out, err = capsys.readouterr()
    assert json.loads(out)["gate"] == "failed"
    assert "cannot ask the test question: m.gguf: NaN" in err


def test_the_starter_gate_runs_for_each_thread_count_first(
    with_starter: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [report["starter_gate"] for report in reports(with_starter, capsys)] == [
        "passed",
        "passed",
    ]
    _, starter = with_starter.opened
    assert len(starter.sessions) == 2
    assert (starter.threads, starter.prefill_threads) == (2, 2)


def test_a_wrong_answer_of_the_bundled_model_stops_the_bench(with_starter: Script) -> None:
    with_starter.replies = [["Lyon"]]
    with pytest.raises(Refusal, match="this machine computes wrongly"):
        bench(BenchOptions("m.gguf", (1,)), built_in_settings(), with_starter.clock)
    assert with_starter.opened[0].sessions == []


def test_wrong_kernels_stop_the_bench(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: object) -> None:
        raise EngineError("matvec q4_k differs from its reference")

    monkeypatch.setattr(engine_access, "check_kernels", fail)
    with pytest.raises(EngineError, match="differs"):
        bench(BenchOptions("m.gguf", (1,)), built_in_settings(), script.clock)


def test_the_text_output_is_a_table(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    history = ReplyHistory(paths.speeds_file())
    for threads in (1, 2):
        history.remember_rates(rates_key(threads), {READ_GBPS: 10.0}, is_quiet=True)
    bench(BenchOptions("m.gguf", (1, 2), 8, 3, 2), built_in_settings(), script.clock)
    out = capsys.readouterr().out
    assert "read 8 tokens" in out
    assert out.count("10.0 (10.0-10.0)") == 4
    bound = "bound by the cores: they compute at 0 % of what memory delivers"
    assert out.count(bound) == 2
    assert "passed with 2 threads" in out


def test_the_bound_of_writing_is_printed() -> None:
    report = {"decode_gbps": 20.0, "threads": 2, "clock_ghz": 2.5, "reason": "bound by memory"}
    assert list(bench_module._bound(report)) == [
        "bound by memory",
        "4.0 bytes per cycle and thread at 2.5 GHz",
    ]
    assert list(bench_module._bound({**report, "clock_ghz": None})) == ["bound by memory"]


def test_other_programs_during_a_bench_are_named(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = Cause("other programs use 1.4 of 2 cores", 0.7)
    monkeypatch.setattr(bench_module, "machine_causes", lambda *samples, **rates: [cause])
    (report,) = reports(script, capsys, thread_counts=(2,))
    assert report["reason"] == cause.text


def test_memory_measured_next_to_busy_programs_is_no_limit(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Mock(end=lambda: Conditions(others_cores=1.4))
    monkeypatch.setattr(bench_module, "watch_machine", lambda: busy)
    bench(BenchOptions("m.gguf", (2,), 8, 3, 2), built_in_settings(), script.clock)
    out = capsys.readouterr().out
    assert "0.0 GB/s, limit unknown" in out
    assert "bound by" not in out


def test_the_limit_is_the_best_measured_bandwidth(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    history = ReplyHistory(paths.speeds_file())
    history.remember_rates(rates_key(2), {READ_GBPS: 40.0}, is_quiet=True)
    (report,) = reports(script, capsys, thread_counts=(2,))
    assert report["memory_gbps"] == 40.0


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    """Path of a text to measure."""
    path = tmp_path / "text.md"
    path.write_text("word " * 200)
    return str(path)


def test_a_text_is_measured_with_and_without_guesses(
    script: Script, capsys: pytest.CaptureFixture[str], text_file: str
) -> None:
    bench(BenchOptions("m.gguf", (1,), 8, 4, 1, text=text_file), built_in_settings(), script.clock)
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if "text of " in line)
    assert [" ".join(line.split()) for line in lines[begin + 1 : begin + 4]] == [
        "without guesses 2.0",
        "this conversation 4.0 2.00x 50 of 101 (50 %) 1.98",
        "the same results with and without guesses, to the bit",
    ]
    measured = reports(script, capsys, thread_counts=(1,), text=text_file)[0]["text"]
    assert measured["guessed"] == measured["tokens"] // 2
    assert measured["decode_tps"] == pytest.approx(2 * measured["plain_decode_tps"])
    assert measured["ways"]["conversation"]["right"] == measured["guessed"]


def test_each_possible_kind_of_guess_is_measured(
    script: Script,
    capsys: pytest.CaptureFixture[str],
    text_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_module, "saved_texts", lambda tokenizer: object())
    assert list(reports(script, capsys, text=text_file)[0]["text"]["ways"]) == [
        "plain",
        "conversation",
        "earlier",
        "all",
    ]
    ways = bench_module._ways_to_guess
    settings = replace(built_in_settings(), guess_ahead="conversation")
    assert list(ways(settings, True, True)) == ["plain", "conversation", "predictor", "all"]
    settings = replace(built_in_settings(), guess_ahead="predictor")
    assert ways(settings, True, True) == {"plain": (), "predictor": ("predictor",)}


@pytest.mark.parametrize(
    ("n_tried", "shown", "reason"),
    [
        ([51, 1, 0], "off", "off: a guess costs more than it brings (0 of 52 were right before)"),
        ([0, 0, 0], "none", "this text gives nothing to guess from"),
    ],
)
def test_a_kind_without_guesses_says_why(
    script: Script,
    capsys: pytest.CaptureFixture[str],
    text_file: str,
    monkeypatch: pytest.MonkeyPatch,
    n_tried: list[int],
    shown: str,
    reason: str,
) -> None:
    def replay_text(
        session: object, prompt: object, ids: object, clock: object, kinds: object, **_: object
    ) -> bench_module._Replay:
        return bench_module._Replay(1.0, next(tries) if kinds else 0, 0, b"")

    tries = iter(n_tried)
    monkeypatch.setattr(bench_module, "_replay_text", replay_text)
    bench(BenchOptions("m.gguf", (1,), 8, 4, 2, text=text_file), built_in_settings(), script.clock)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    row = next(number for number, line in enumerate(lines) if "this conversation" in line)
    assert lines[row].endswith(f"1.00x {shown} 1.00")
    assert lines[row + 1] == reason


def test_a_guess_that_changes_a_result_stops_the_bench(script: Script, text_file: str) -> None:
    script.wrong_guess = "other logits"
    options = BenchOptions("m.gguf", (1,), 8, 4, 1, text=text_file)
    with pytest.raises(Refusal, match=r"guesses \(conversation\) changed a result"):
        bench(options, built_in_settings(), script.clock)


def test_a_text_too_short_to_measure_is_refused(script: Script, tmp_path: Path) -> None:
    text = tmp_path / "text.md"
    text.write_text("word")
    with pytest.raises(Refusal, match="has 2 tokens"):
        bench(
            BenchOptions("m.gguf", (1,), 8, 4, 1, text=str(text)), built_in_settings(), script.clock
        )


def test_a_profile_shows_all_plans_and_decode_per_token(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(BenchOptions("m.gguf", (1,), 8, 4, 1, profile=True), built_in_settings(), script.clock)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-4:-3] for line in lines if line[:1] == ["feed-forward"]] == [
        ["250.00"],
        *[["1000.00"]] * 4,
    ]
    titles = [" ".join(line[2:6]) for line in lines if line[:2] == ["time", "of"]]
    assert titles == [
        "writing a token ms",
        "reading a few tokens",
        "reading the last of",
        "reading the prompt ms",
        "reading the prompt's last",
    ]
    report = reports(script, capsys, thread_counts=(1,), n_gen=4, profile=True)[0]["profile"]
    assert [(name, phase[0]["ms"], phase[0]["bytes"]) for name, phase in report.items()] == [
        ("decode", 250.0, 250_000_000),
        *(
            (name, 1000.0, 10**9)
            for name in ("small batch", "small batch last", "block", "block last")
        ),
    ]

"""``jalopy bench``: check that a model is computed correctly, then measure its speed.

The measurement is that of ``llama-bench`` and most other engines: prefill ``n_prompt`` random
tokens into an empty cache, then decode ``n_gen`` random tokens. The first round warms up; the
``rounds`` after it count.
"""

import hashlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.backend.local import engine_access
from app.backend.local.earlier_texts import saved_texts
from app.backend.reply import Clock, Reply
from app.backend.work_thread import engine_thread_numbers, start_work_thread
from app.cli.output import ProgressLine
from app.documents.text_file import read_text_file
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.records import Ceiling
from app.machine.sensors.reply_history import (
    READ_GBPS,
    Basis,
    KnownAs,
    ReplyHistory,
    Speeds,
    past_measurement,
    rates_key,
)
from app.machine.sensors.speed_causes import SpeedReadings, machine_causes, speed_reason
from app.machine.sensors.tuning_conditions import watch_machine
from app.models.library.speed import writing_text
from app.program import exit_codes, paths
from app.program.bundled_model import starter_file
from app.program.refusals import Refusal, exit_code_of, say
from app.program.settings import Settings
from app.program.version import installed_version
from app.session import model_sampling
from app.session.adapters import described
from app.text import guesses
from app.text.clean_text import clean_line
from app.text.figures import counted, rate
from app.text.json_line import json_line
from app.text.record import record

QUESTION = "What is the capital of France?"
ANSWER = "Paris"
_LONGEST_ANSWER_TOKENS = 48
_SEED = 0
_SHORTEST_TEXT_TOKENS = 32
_LONGEST_TEXT_TOKENS = 384
_PLAIN = "plain"
_WAY_TITLES = {_PLAIN: "without guesses"} | guesses.NAMES | {"all": "all of these"}
_PLAN_TITLES = {
    "decode": "writing a token",
    "small batch": "reading a few tokens",
    "small batch last": "reading the last of a few tokens",
    "block": "reading the prompt",
    "block last": "reading the prompt's last token",
}
"""Titles of the plans in a profile."""


@record
class BenchOptions:
    """Arguments of ``bench`` that are not settings."""

    model: str
    thread_counts: Sequence[int]
    n_prompt: int = 128
    n_gen: int = 32
    rounds: int = 3
    as_json: bool = False
    profile: bool = False
    text: str = ""


def bench(options: BenchOptions, settings: Settings, clock: Clock = time.perf_counter) -> int:
    """Check, measure and print, one thread count after the other.

    Raises:
        EngineError: the model cannot be used, or a kernel differs from its reference.
        Refusal: the starter model gives a wrong answer, so this machine computes wrongly.
    """
    engine = start_work_thread()
    progress = ProgressLine()
    model = engine.run(
        lambda: engine_access.open_model(settings, options.model, progress.show_opening)
    )
    if settings.adapters:
        engine.run(lambda: engine_access.use_adapters(model, settings.adapters))
    path = starter_file()
    starter = engine.run(
        lambda: engine_access.open_model(settings, path, progress.show_opening) if path else None
    )
    progress.clear()
    gates = []
    if starter:
        starter_gate = "passed"
    else:
        starter_gate = "not installed"
    if not options.as_json:
        _print_head(model, options, settings)
    for threads in options.thread_counts or (model.threads,):
        engine.run(partial(_require_answer, starter, threads, clock))
        report = engine.run(partial(_measure, model, threads, options, settings, clock))
        gates.append(f"{report['gate']} with {counted(threads, 'thread')}")
        progress.clear()  # measuring may load more of a model
        if options.as_json:
            print(json_line(report | {"starter_gate": starter_gate}), flush=True)
        else:
            _print_row(report)
    if not options.as_json:
        usual = Speeds(**report["usual"])
        if usual.decode_tps:
            n_threads = counted(usual.threads, "thread")
            print(f"usual here: {writing_text(usual)} with {n_threads}")
        print(f"kernels compared with their references: passed; starter model: {starter_gate}")
        print(f'"{QUESTION}": {", ".join(gates)}', flush=True)
    return exit_codes.OK


def _require_answer(starter: Any, threads: int, clock: Clock) -> None:
    """Check the starter model's answer. Raises Refusal: it is wrong."""
    if starter is None:
        return
    starter.set_threads(threads, threads)
    if gate(starter, clock) != "passed":
        raise Refusal(
            f"jalopy bench: with {counted(threads, 'thread')} the starter model does not answer "
            f'"{QUESTION}" with {ANSWER}: its file is damaged, or this machine computes wrongly '
            "(check with jalopy verify starter)",
            exit_codes.INTERNAL,
        )


def gate(model: Any, clock: Clock) -> str:
    """Ask a question with a known answer; return "passed", "failed" or "not a chat model".

    A failure is not an error: a model with random weights always fails.
    """
    if model.chat_template.source is None or model.chat_template.notice is not None:
        return "not a chat model"
    try:
        if ANSWER in ask(model, _LONGEST_ANSWER_TOKENS, clock=clock).text:
            return "passed"
        return "failed"
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        say(f"jalopy bench: cannot ask the test question: {error}")
        return "failed"


def ask(
    model: Any,
    max_tokens: int,
    on_piece: Callable[[Reply], object] = lambda reply: None,
    clock: Clock = time.monotonic,
) -> Reply:
    """Return the model's reply to the question with the known answer, at temperature 0.

    Args:
        on_piece: called with the growing reply after each token.
    """
    chat = model.chat()
    chat.start(None)
    ids = chat.add_user(QUESTION)
    n_ctx = min(len(ids) + max_tokens, model.config.context_length)
    with closing(model.session(n_ctx, "f16")) as session:
        reply = Reply(
            session, ids, model_sampling.greedy_sampling(), max_tokens=max_tokens, clock=clock
        )
        for _ in reply:
            on_piece(reply)
        return reply


def measure(
    session: Any, options: BenchOptions, vocab_size: int, clock: Clock
) -> dict[str, list[float]]:
    """Return the tokens per second of prefill and decode, one per round, in ascending order."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    prompt = random.integers(0, vocab_size, options.n_prompt).tolist()
    tps: dict[str, list[float]] = {"prefill_tps": [], "decode_tps": []}
    for round_number in range(options.rounds + 1):
        following = random.integers(0, vocab_size, options.n_gen).tolist()
        session.truncate(0)
        started_s = clock()
        session.feed(prompt)
        prefilled_s = clock()
        for token_id in following:
            session.feed([token_id])
        ended_s = clock()
        if round_number > 0:  # the first round warms up
            tps["prefill_tps"].append(options.n_prompt / (prefilled_s - started_s))
            tps["decode_tps"].append(options.n_gen / (ended_s - prefilled_s))
    return {key: sorted(rates) for key, rates in tps.items()}


def _measure(
    model: Any, threads: int, options: BenchOptions, settings: Settings, clock: Clock
) -> dict[str, Any]:
    requested_kv_type = engine_access.kv_type_of(settings, model)
    model.set_threads(threads, threads)
    engine_access.check_kernels(model)
    gate_result = gate(model, clock)
    watch = watch_machine()
    monitor = MachineMonitor(engine_threads=engine_thread_numbers)
    n_context = options.n_prompt + options.n_gen
    with closing(model.session(n_context, requested_kv_type)) as session:
        watch.begin()
        monitor.sample_load(time.monotonic(), None)
        rates = measure(session, options, model.config.vocab_size, clock)
        sample = monitor.sample_load(time.monotonic(), None)
        is_quiet = watch.end().is_quiet
        if options.profile:
            profile = run_profile(session, options, model.config.vocab_size)
        else:
            profile = {}
        kv_type = session.kv_type
        context_bytes = (options.n_prompt + options.n_gen / 2) * session.kv_bytes_per_position
        bytes_per_token = model.bytes_per_token + 2 * session.state_bytes + context_bytes
        for line in session.notices:
            say(f"jalopy bench: {line}")
    if options.text:
        text = text_speed(model, options, settings, kv_type, clock)
    else:
        text = {}
    prefill_tps, decode_tps = (statistics.median(values) for values in rates.values())
    known_as = KnownAs(model.name, model.quantization, model.weights_bytes)
    history = ReplyHistory(paths.speeds_file())
    memory_gbps = _memory_gbps(model, threads, history, is_quiet)
    known_gbps = history.rates(rates_key(threads)).get(READ_GBPS)
    memory_share = None
    if known_gbps:
        memory_share = Ceiling(bytes_per_token, known_gbps).memory_share(decode_tps)
    readings = SpeedReadings(
        decode_tps,
        _usual_tps(history, known_as, threads),
        memory_share,
        context_bytes / bytes_per_token,
        machine_causes([sample], threads, weights_bytes_per_s=decode_tps * bytes_per_token),
    )
    if not settings.adapters:
        n_read = options.rounds * options.n_prompt
        measured = past_measurement(
            options.rounds * options.n_gen, decode_tps, n_read, prefill_tps, is_quiet
        )
        history.add(known_as.key(model.weights_mode, threads), measured)
    usual = history.usual(known_as)
    return {
        "usual": asdict(usual or Speeds()),
        "engine": "jalopy",
        "model": model.name,
        "quantization": model.quantization,
        "adapters": list(settings.adapters),
        "weights": model.weights_mode,
        "huge_page_bytes": model.huge_bytes,
        "kv_type": kv_type,
        "threads": threads,
        "n_prompt": options.n_prompt,
        "n_gen": options.n_gen,
        **rates,
        "decode_gbps": decode_tps * bytes_per_token / 1e9,
        "memory_gbps": memory_gbps,
        "memory_share": memory_share,
        "reason": speed_reason(readings).text,
        "clock_ghz": model.clock_ghz(),
        "profile": profile,
        "text": text,
        "gate": gate_result,
        "kernels": "passed",
        "cpu": engine_access.cpu_level(),
        "versions": versions(),
    }


def _usual_tps(history: ReplyHistory, known_as: KnownAs, threads: int) -> float:
    """Return the usual speed of writing in quiet times; 0 if unknown, or with other threads."""
    usual = history.usual(known_as)
    if usual is None or usual.basis is not Basis.MEASURED or usual.threads != threads:
        return 0.0
    return usual.decode_tps


def _memory_gbps(model: Any, threads: int, history: ReplyHistory, is_quiet: bool) -> float:
    """Measure how fast memory can be read, and return the best rate that was ever measured here.

    The performance screen shows the same limit, if it was measured while other programs were quiet.
    """
    gbps: float = model.read_bandwidth_gbps(threads)
    best = history.remember_rates(rates_key(threads), {READ_GBPS: gbps}, is_quiet)
    return max(gbps, best.get(READ_GBPS, 0.0))


def text_speed(
    model: Any, options: BenchOptions, settings: Settings, kv_type: str, clock: Clock
) -> dict[str, Any]:
    """Measure how fast the second half of a text is decoded without guesses, with each kind of
    guess and with all.

    The tokens come from the text, not from the model, so random weights work as well. A first round
    compares the results.

    Raises:
        Refusal: the file cannot be read, or is too short; or guesses changed a result.
    """
    ids = model.tokenizer.encode(read_text_file(Path(options.text)))[: model.config.context_length]
    n = min(len(ids) // 2, _LONGEST_TEXT_TOKENS)
    if n < _SHORTEST_TEXT_TOKENS:
        raise Refusal(
            f"jalopy bench: {options.text}: has {len(ids)} tokens "
            f"(use a text of at least {2 * _SHORTEST_TEXT_TOKENS})",
            exit_codes.BAD_DATA,
        )
    with closing(model.session(len(ids), kv_type)) as session:
        session.earlier_text = saved_texts(model.tokenizer)
        has_predictor = model.config.predictor is not None or model.assistant.assistant is not None
        ways = _ways_to_guess(settings, session.earlier_text is not None, has_predictor)
        costs = {name: deepcopy(session.guess_costs) for name in ways}
        replay = partial(_replay_text, session, ids[:-n], ids[-n:], clock)
        plain_digest = replay(()).digest
        checks: dict[str, _Replay] = {}
        for name, kinds in ways.items():
            session.guess_costs = costs[name]
            checks[name] = replay(kinds)
            if checks[name].digest != plain_digest:
                raise Refusal(
                    f"jalopy bench: guesses ({name}) changed a result, which must never happen: "
                    "please report it",
                    exit_codes.INTERNAL,
                )
        replays: dict[str, list[_Replay]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, kinds in ways.items():
                session.guess_costs = costs[name]
                replays[name].append(replay(kinds, has_digest=False))
    reports = {name: _way_report(n, checks[name], runs) for name, runs in replays.items()}
    last = list(reports.values())[-1]
    return {
        "tokens": n,
        "guessed": last["right"],
        "decode_tps": last["decode_tps"],
        "plain_decode_tps": reports[_PLAIN]["decode_tps"],
        "same": True,
        "ways": reports,
    }


def _ways_to_guess(
    settings: Settings, has_earlier_text: bool, has_predictor: bool
) -> dict[str, tuple[str, ...]]:
    """Return the kinds of guesses to measure together, by name: none, each kind that the settings
    allow and that is possible, and all of them."""
    possible = {
        guesses.CONVERSATION: True,
        guesses.EARLIER: has_earlier_text,
        guesses.PREDICTOR: has_predictor,
    }
    kinds = tuple(kind for kind in guesses.guess_kinds(settings.guess_ahead) if possible[kind])
    ways: dict[str, tuple[str, ...]] = {_PLAIN: ()} | {kind: (kind,) for kind in kinds}
    if len(kinds) > 1:
        ways["all"] = kinds
    return ways


@record
class _Replay:
    """A measured replay of a text."""

    seconds: float
    tried: int
    right: int
    digest: bytes
    """Hash of the logits after every token, if they were hashed."""


def _replay_text(
    session: Any,
    prompt_ids: Sequence[int],
    ids: Sequence[int],
    clock: Clock,
    kinds: Sequence[str],
    has_digest: bool = True,
) -> _Replay:
    """Feed a prompt, then tokens as a reply feeds them."""
    session.prefill(prompt_ids)
    digest = hashlib.blake2b()
    on_logits = None
    if has_digest:
        on_logits = digest.update
    started_s = clock()
    replayed = engine_access.replay(session, ids, kinds, on_logits)
    seconds = clock() - started_s
    return _Replay(seconds, replayed.tried, replayed.right, digest.digest())


def _way_report(n_tokens: int, check: _Replay, replays: Sequence[_Replay]) -> dict[str, Any]:
    """Return the median speed, and the guesses of the last round and of those before it.

    Args:
        check: round that compared the results; its time does not count, but its guesses teach the
            session what guesses cost.
    """
    *earlier, last = replays
    return {
        "decode_tps": n_tokens / statistics.median(replay.seconds for replay in replays),
        "tried": last.tried,
        "right": last.right,
        "tried_before": sum(replay.tried for replay in (check, *earlier)),
        "right_before": sum(replay.right for replay in (check, *earlier)),
        "tokens_per_run": n_tokens / (n_tokens - last.right),
    }


def _text_lines(text: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the speed of a text with each kind of guess."""
    title = f"text of {counted(text['tokens'], 'token')}"
    yield f"{title:<26}{'tok/s':>7}{'':9}{'guesses right':<17}tokens a run"
    for name, way in text["ways"].items():
        row = f"  {_WAY_TITLES[name]:<24}{rate(way['decode_tps']):>7}"
        if name != _PLAIN:
            gain = way["decode_tps"] / text["plain_decode_tps"]
            row += f"{gain:>6.2f}x  {_guesses_right(way):<17}{way['tokens_per_run']:.2f}"
        yield row
        if name != _PLAIN and not way["tried"]:
            yield f"    {_reason_for_no_guesses(way)}"
    yield "  the same results with and without guesses, to the bit"


def _guesses_right(way: dict[str, Any]) -> str:
    """Return how many guesses of a way were right, and their share."""
    if not way["tried"]:
        return "off" if way["tried_before"] else "none"
    return f"{way['right']} of {way['tried']} ({100 * way['right'] / way['tried']:.0f} %)"


def _reason_for_no_guesses(way: dict[str, Any]) -> str:
    """Return a line on why nothing was guessed in the last round."""
    if not way["tried_before"]:
        return "this text gives nothing to guess from"
    before = f"{way['right_before']} of {way['tried_before']} were right before"
    return f"off: a guess costs more than it brings ({before})"


def run_profile(
    session: Any, options: BenchOptions, vocab_size: int
) -> dict[str, list[dict[str, Any]]]:
    """Run one more round with every operation timed.

    Times are per token for the plan "decode", and per prompt for the others.
    """
    session.profiler.start()
    measure(session, replace(options, rounds=0), vocab_size, time.perf_counter)
    times = session.profiler.stop()
    n_times = {"decode": options.n_gen}
    return {
        name: [_phase_report(phase, n_times.get(name, 1)) for phase in phases]
        for name, phases in times.items()
    }


def _phase_report(phase: Any, n_times: int) -> dict[str, Any]:
    return {
        "phase": phase.phase,
        "ms": 1000 * phase.seconds / n_times,
        "bytes": phase.weight_bytes // n_times,
        "gbps": phase.gbps,
        "share": phase.share,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and the packages that compute."""
    packages = "jalopy", "numba", "llvmlite", "numpy"
    return {"python": platform.python_version()} | {
        package: installed_version(package) for package in packages
    }


def _print_head(model: Any, options: BenchOptions, settings: Settings) -> None:
    name = clean_line(model.name, 60)
    quantization = clean_line(model.quantization, 12)
    if settings.adapters:
        name += " · " + described(settings.adapters)
    print(f"{name} · {quantization} · CPU level {engine_access.cpu_level()}")
    print(f"tok/s, median of {options.rounds} (lowest-highest)")
    columns = (
        f"read {options.n_prompt} tokens",
        f"write {options.n_gen} tokens",
        "share of bandwidth",
    )
    print(f"threads {columns[0]:>22} {columns[1]:>22}  {columns[2]:>25}", flush=True)


def _print_row(report: dict[str, Any]) -> None:
    """Print the figures of one thread count as text."""
    columns = [spread(report[key]) for key in ("prefill_tps", "decode_tps")]
    limit = f"{report['decode_gbps']:.1f} GB/s, limit unknown"
    if report["memory_share"] is not None:
        limit = (
            f"{report['decode_gbps']:.1f} of {report['memory_gbps']:.1f} GB/s "
            f"({100 * report['memory_share']:.0f} %)"
        )
    print(f"{report['threads']:7} {columns[0]:>22} {columns[1]:>22}  {limit:>25}", flush=True)
    for line in _bound(report):
        print(f"{'':9}{line}", flush=True)
    if text := report["text"]:
        for line in _text_lines(text):
            print(f"{'':9}{line}", flush=True)
    for name, title in _PLAN_TITLES.items():
        _print_phases(title, report["profile"].get(name, []))


def _bound(report: dict[str, Any]) -> Iterator[str]:
    """Yield lines that say what bounds decoding."""
    if report["reason"]:
        yield report["reason"]
    if report["clock_ghz"] is not None:
        bytes_per_cycle = report["decode_gbps"] / report["threads"] / report["clock_ghz"]
        yield f"{bytes_per_cycle:.1f} bytes per cycle and thread at {report['clock_ghz']:.1f} GHz"


def _print_phases(title: str, phases: list[dict[str, Any]]) -> None:
    if not phases:
        return
    print(f"  {'time of ' + title:<42}{'ms':>9}{'MB':>9}{'GB/s':>8}{'share':>8}")
    for phase in phases:
        if phase["bytes"]:
            megabytes = f"{phase['bytes'] / 1e6:.1f}"
            speed = f"{phase['gbps']:.1f}"
        else:
            megabytes = speed = "-"
        print(
            f"    {phase['phase']:<40}{phase['ms']:>9.2f}{megabytes:>9}{speed:>8}"
            f"{phase['share']:>8.1%}"
        )


def spread(rates_tps: Sequence[float]) -> str:
    """Return the median of sorted rates with the lowest and the highest, e.g. "5.1 (5.0-5.3)"."""
    if not rates_tps:
        return "-"
    return f"{rate(statistics.median(rates_tps))} ({rate(rates_tps[0])}-{rate(rates_tps[-1])})"

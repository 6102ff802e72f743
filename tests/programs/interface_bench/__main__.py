"""``python -m tests.programs.interface_bench MODEL``: a table for people, then one line of JSON."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.cli.dispatch import guard
from app.program import exit_codes
from app.program.bundled_model import model_path
from app.program.refusals import say
from app.text.json_line import json_line
from tests.programs.interface_bench import scenarios
from tests.programs.interface_bench.scenarios import ChatRound, Plan, Start
from tests.programs.interface_bench.terminal import ProgramFailed

CHAT_SCREEN = "ChatScreen"
DECODE_GOAL = 0.97
"""Share of bench's decode rate to keep, with the chat and with the performance screen."""
KEY_GOAL_S = 0.035
FRAME_GOAL_S = 0.35
READY_GOAL_S = 0.9
IDLE_GOAL = 0.007
"""Goal for the share of a core that all processes of the chat use together."""


@dataclass
class Figures:
    """Everything measured, one value per round."""

    bench_tps: list[float] = field(default_factory=list)
    chat: list[ChatRound] = field(default_factory=list)
    performance: list[ChatRound] = field(default_factory=list)
    typing: list[ChatRound] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    start_steps: list[list[tuple[str, float]]] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Measure and print; the exit code tells only whether measuring worked."""
    if argv and argv[0] == "--measured-chat":
        return _measured_chat(argv[1:])
    if argv and argv[0] == "--traced-start":
        from tests.programs.interface_bench.traced_start import run

        return run(int(argv[1]), argv[2])
    options = _options(argv)
    threads = options.threads or _default_threads()
    plan = Plan(
        str(model_path(options.model)),
        threads,
        options.n_gen,
        (options.columns, options.rows),
        options.ctx,
        options.idle_s,
    )
    figures = Figures()
    try:
        for n in range(options.rounds):
            for name, measure in _steps(plan, figures, options.only):
                say(f"round {n + 1} of {options.rounds}: {name}")
                measure()
    except ProgramFailed as error:
        say(f"jalopy: {error}")
        return exit_codes.INTERNAL
    print("\n".join(table(plan, figures)))
    print(json_line(report(plan, figures)), flush=True)
    return exit_codes.OK


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all values (0 to 1) does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(plan: Plan, figures: Figures) -> list[str]:
    """Write the figures for people."""
    lines = [
        f"decode, {plan.threads} threads, {plan.n_tokens} tokens, {plan.size[0]} x {plan.size[1]}; "
        "medians"
    ]
    bench = _median(figures.bench_tps)
    if bench:
        lines.append(f"  {'jalopy bench, alone':<34}{bench:8.2f} tok/s")
    for name, rounds, goal in (
        ("chat, Markdown streaming", figures.chat, DECODE_GOAL),
        ("performance screen (F2)", figures.performance, DECODE_GOAL),
        ("chat, somebody typing", figures.typing, None),
    ):
        lines += [f"  {name:<34}{text}" for text in _chat_text(name, rounds, bench, goal)]
    latencies = [latency for chat in figures.typing for latency in chat.latencies_s]
    if latencies:
        p50, p95 = (1000 * percentile(latencies, share) for share in (0.5, 0.95))
        verdict = _verdict(p95 <= 1000 * KEY_GOAL_S)
        lines.append(
            f"key to paint while decoding: median {p50:.0f} ms, 95th percentile {p95:.0f} ms of {len(latencies)} keys "
            f"(goal {1000 * KEY_GOAL_S:.0f} ms: {verdict})"
        )
    if figures.starts:
        lines += [
            _start_text(
                "first frame", [start.first_frame_s for start in figures.starts], FRAME_GOAL_S
            ),
            _start_text("ready", [start.ready_s for start in figures.starts], READY_GOAL_S),
        ]
        idle = statistics.median(start.idle_share for start in figures.starts)
        lines.append(
            f"idle: {idle:.2%} of a core (goal {IDLE_GOAL:.1%}: {_verdict(idle <= IDLE_GOAL)})"
        )
    for name, seconds in best_steps(figures):
        lines.append(f"  {name:<34}{1000 * seconds:8.0f} ms")
    return lines


def best_steps(figures: Figures) -> list[tuple[str, float]]:
    """Return the steps of a start, each with the best of its times."""
    rounds = figures.start_steps
    return (
        [(name, min(steps[n][1] for steps in rounds)) for n, (name, _) in enumerate(rounds[0])]
        if rounds
        else []
    )


def report(plan: Plan, figures: Figures) -> dict[str, object]:
    """Return the figures for scripts, every round of them."""
    return {
        "model": plan.model,
        "threads": plan.threads,
        "tokens": plan.n_tokens,
        "terminal": list(plan.size),
        "bench_tps": figures.bench_tps,
        "chat_tps": [chat_round.decode_tps for chat_round in figures.chat],
        "chat_interface_share": [chat_round.interface_share for chat_round in figures.chat],
        "performance_tps": [
            chat_round.decode_tps
            for chat_round in figures.performance
            if chat_round.screen != CHAT_SCREEN
        ],
        "performance_interface_share": [
            chat_round.interface_share for chat_round in figures.performance
        ],
        "performance_screen": sorted({chat_round.screen for chat_round in figures.performance}),
        "typing_tps": [chat_round.decode_tps for chat_round in figures.typing],
        "key_to_paint_s": [
            chat_round for chat in figures.typing for chat_round in chat.latencies_s
        ],
        "first_frame_s": [start.first_frame_s for start in figures.starts],
        "ready_s": [start.ready_s for start in figures.starts],
        "idle_share": [start.idle_share for start in figures.starts],
        "start_steps_s": dict(best_steps(figures)),
        "versions": scenarios.versions(),
    }


def _chat_text(
    name: str, rounds: Sequence[ChatRound], bench: float | None, goal: float | None
) -> list[str]:
    if not rounds:
        return []
    if "F2" in name and any(chat_round.screen == CHAT_SCREEN for chat_round in rounds):
        return ["not measured: F2 opened no screen"]
    tps = statistics.median(chat_round.decode_tps for chat_round in rounds)
    cores = statistics.median(chat_round.interface_share for chat_round in rounds)
    text = f"{tps:8.2f} tok/s"
    if bench:
        text += f"  {tps / bench:6.1%} of bench"
        text += f" (goal {goal:.0%}: {_verdict(tps >= goal * bench)})" if goal else ""
    return [f"{text}  interface {cores:.1%} of a core"]


def _start_text(label: str, seconds: Sequence[float], goal_s: float) -> str:
    median_s = statistics.median(seconds)
    return f"{label}: {median_s:.2f} s, best {min(seconds):.2f} s (goal {goal_s} s: {_verdict(median_s <= goal_s)})"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "NOT met"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _steps(
    plan: Plan, figures: Figures, only: Sequence[str]
) -> list[tuple[str, Callable[[], None]]]:
    """The scenarios of one round, in turn."""
    key = scenarios.PERFORMANCE_KEY
    steps: list[tuple[str, Callable[[], None]]] = [
        ("bench", lambda: figures.bench_tps.append(scenarios.bench_tps(plan))),
        ("chat", lambda: figures.chat.append(scenarios.chat(plan))),
        ("performance", lambda: figures.performance.append(scenarios.chat(plan, key))),
        ("typing", lambda: figures.typing.append(scenarios.chat(plan, types=True))),
        ("start", lambda: figures.starts.append(scenarios.start(plan))),
        ("steps", lambda: figures.start_steps.append(scenarios.start_steps(plan))),
    ]
    return [(name, step) for name, step in steps if not only or name in only]


def _options(argv: Sequence[str]) -> argparse.Namespace:
    names = ("bench", "chat", "performance", "typing", "start", "steps")
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.interface_bench",
        description="Measure what the interface costs the engine: the real chat on a pseudo-terminal, driven by keys, "
        "while the model decodes and a Markdown-heavy reply streams, in turn with jalopy bench. The machine should "
        "be quiet; a first run compiles kernels and is worth nothing.",
    )
    number = partial(_whole, least=1)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "-t", "--threads", type=number, metavar="N", help="threads (one per physical core)"
    )
    parser.add_argument(
        "-n", "--n-gen", type=number, default=256, metavar="N", help="tokens of a reply (256)"
    )
    parser.add_argument(
        "-r", "--rounds", type=number, default=3, metavar="N", help="rounds of everything (3)"
    )
    parser.add_argument(
        "--ctx", type=number, default=1024, metavar="N", help="context of the chat (1024)"
    )
    parser.add_argument(
        "--idle-s",
        type=float,
        default=10.0,
        metavar="N",
        help="seconds that an idle chat is watched (10)",
    )
    parser.add_argument(
        "--columns", type=number, default=100, metavar="N", help="width of the terminal (100)"
    )
    parser.add_argument(
        "--rows", type=number, default=30, metavar="N", help="height of the terminal (30)"
    )
    parser.add_argument("--only", nargs="*", choices=names, default=(), help="leave the others out")
    return parser.parse_args(argv)


def _whole(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text}: at least {least}")
    return value


def _default_threads() -> int:
    from engine.machine import host

    return host.cores().default_threads


def _measured_chat(argv: Sequence[str]) -> int:
    from tests.programs.interface_bench.measured_chat import run

    events_fd, model, threads, n_tokens, context = argv
    return run(int(events_fd), model, int(threads), int(n_tokens), int(context))


if __name__ == "__main__":
    sys.exit(guard(partial(main, sys.argv[1:])))  # whatever ends this ends the chat that it runs

"""Scenarios: one function each, in a fresh process, returning plain figures."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from app.program.paths import own_module
from app.text.record import record
from tests.programs.interface_bench.terminal import Events, ProgramFailed, Terminal

QUESTION = (
    "Explain in detail, with a table and some code, how a bicycle stays upright while it moves."
)
PROMPT_TOKENS = 48
"""Prompt tokens of ``jalopy bench``: about as many as the question with its template."""
PERFORMANCE_KEY = b"\x1bOQ"
"""F2."""
KEY_PERIOD_S = 0.23
"""Between two keys of the typist: four a second, out of step with a screen that draws ten times a
second."""
LETTERS = "αβγδεζηθικλμνξοπρστυφχψωабвгджзийклмнопрстуфхцчшщыэюяБГДЖЗИЛПФЦЧШЩЫЭЮЯ"
"""Each stands nowhere else on the screen: when it appears in the output, its key has been
painted."""
_QUIET_S = 0.5
_SETTLED_S = 2.0
"""Nothing painted for so long: what begins after a start is over."""


@record
class Plan:
    """Settings that all rounds share."""

    model: str
    threads: int
    n_tokens: int
    size: tuple[int, int]
    context: int
    idle_s: float = 10.0
    """How long an idle chat is watched."""


@record
class Start:
    """Start of the program, and its load while the user does nothing."""

    first_frame_s: float
    ready_s: float
    """From the process's start until a model can be asked."""
    idle_share: float
    """CPU time of all its processes per second, in cores."""


@record
class ChatRound:
    """Measurements of a reply in the chat."""

    decode_tps: float
    interface_share: float
    """CPU time of the interface's thread per second of decoding, in cores."""
    screen: str
    latencies_s: tuple[float, ...] = ()
    """From key to paint."""


def bench_tps(plan: Plan) -> float:
    """Decode with ``jalopy bench``, nothing else running: tokens a second."""
    command = [
        *own_module("app"),
        "bench",
        plan.model,
        "-t",
        str(plan.threads),
        "-p",
        str(PROMPT_TOKENS),
    ]
    command += ["-n", str(plan.n_tokens), "-r", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProgramFailed(f"jalopy bench failed: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["decode_tps"][0])


def chat(plan: Plan, key: bytes = b"", types: bool = False) -> ChatRound:
    """Ask for one long Markdown reply.

    Args:
        key: pressed as soon as the reply is being written, e.g. for another screen.
        types: whether somebody types into the prompt meanwhile.
    """
    with _chat_running(plan) as (terminal, events):
        terminal.press(QUESTION.encode())
        terminal.settle(_QUIET_S)
        terminal.press(b"\r")
        terminal.read_until(lambda: events.last("begin") is not None, "the reply to begin")
        if key:
            terminal.press(key)
        latencies = tuple(_type(terminal, events)) if types else ()
        terminal.read_until(lambda: events.last("end") is not None, "the reply to end")
        ending = events.last("end")
        assert ending is not None
        share = ending["interface_s"] / ending["seconds"]
        return ChatRound(ending["tokens"] / ending["seconds"], share, ending["screen"], latencies)


def start(plan: Plan) -> Start:
    """Start ``jalopy MODEL`` as a user does, and leave it alone when it is ready."""
    with tempfile.TemporaryDirectory(prefix="jalopy-bench-") as home:
        terminal = Terminal([*own_module("app"), plan.model], _environ(home), plan.size)
        try:
            painted_s = terminal.read_until(lambda: _is_painted(terminal.output), "the first frame")
            ready_s = terminal.read_until(lambda: _is_ready(terminal.output), "the model")
            terminal.settle(_SETTLED_S)
            before_s = terminal.cpu_s()
            since_s = time.perf_counter()
            terminal.read_for(plan.idle_s)
            idle_share = (terminal.cpu_s() - before_s) / (time.perf_counter() - since_s)
            return Start(painted_s - terminal.started_s, ready_s - terminal.started_s, idle_share)
        finally:
            terminal.close()


def start_steps(plan: Plan) -> list[tuple[str, float]]:
    """Start the chat step by step: each step with the seconds it took, in order."""
    events = Events()
    with tempfile.TemporaryDirectory(prefix="jalopy-bench-") as home:
        command = [
            *own_module("tests.programs.interface_bench"),
            "--traced-start",
            str(events.write_fd),
            plan.model,
        ]
        terminal = Terminal(command, _environ(home), plan.size, [events.write_fd])
        try:
            painted_s = terminal.read_until(lambda: _is_painted(terminal.output), "the first frame")
            events.last("step")
            steps = [(event["step"], event["at_s"]) for event in events.seen]
        finally:
            terminal.close()
            events.close()
    steps = [("", terminal.started_s), *steps, ("painting", painted_s)]
    return [(step, at_s - before_s) for (_, before_s), (step, at_s) in pairwise(steps)]


def _is_painted(output: bytes) -> bool:
    """Whether the alternate screen was entered and the application's name painted into it."""
    _, entered, painted = output.partition(b"\x1b[?1049h")
    return bool(entered) and b"jalopy" in painted


def _is_ready(output: bytes) -> bool:
    """Whether the status line shows a speed, which it does only where a model can be asked."""
    return _is_painted(output) and b" tok/s" in output


def _type(terminal: Terminal, events: Events) -> Iterator[float]:
    """Press one letter after the other while the reply is written; yield how long each took to be
    painted."""
    jitter = random.Random(0)
    for letter in LETTERS:
        if events.last("end") is not None:
            return
        key = letter.encode()
        seen = len(terminal.output)
        pressed_s = terminal.press(key)
        painted_s = terminal.read_until(
            lambda: key in terminal.output[seen:],  # noqa: B023
            f"the letter {letter}",
            30.0,
        )
        if events.last("end") is None:
            yield painted_s - pressed_s
        pause_until_s = pressed_s + KEY_PERIOD_S * jitter.uniform(0.7, 1.3)
        terminal.read_for(pause_until_s - time.perf_counter())


@contextmanager
def _chat_running(plan: Plan) -> Iterator[tuple[Terminal, Events]]:
    """Run the measured chat until its model is loaded and its screen quiet."""
    events = Events()
    with tempfile.TemporaryDirectory(prefix="jalopy-bench-") as home:
        arguments = [
            str(events.write_fd),
            plan.model,
            str(plan.threads),
            str(plan.n_tokens),
            str(plan.context),
        ]
        command = [*own_module("tests.programs.interface_bench"), "--measured-chat", *arguments]
        terminal = Terminal(command, _environ(home), plan.size, [events.write_fd])
        try:
            terminal.read_until(lambda: events.last("ready") is not None, "the model")
            terminal.settle(_QUIET_S)
            yield terminal, events
        finally:
            terminal.close()
            events.close()


def _environ(home: str) -> dict[str, str]:
    """The environment of a usual terminal, with settings and state of no one; compiled kernels
    stay."""
    places = {f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in ("CONFIG", "STATE", "DATA")}
    return {**os.environ, **places, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def versions() -> dict[str, Any]:
    """Return what decides the cost of the interface."""
    from importlib.metadata import version

    from app.cli.bench import versions as engine_versions

    return {**engine_versions(), "textual": version("textual")}

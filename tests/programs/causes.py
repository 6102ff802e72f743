"""``python -m tests.programs.causes MODEL [--full FILE]``: what the screen says of a slow reply,
against reality.

Each situation is made on this machine: other programs that compute, one core, a CPU quota, a model
that is read from the disk, few and many threads. The chat's own engine writes a reply in it, and
the sentence of F2 is compared with the situation. A situation that the machine does not allow is
left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

MESSAGE = "Write a story of 900 words about a lighthouse, a storm and a boat."
_LOOK_S = 0.5
_FIRST_LOOK_S = 4.0
"""Seconds of writing before the sentences count: the figures are those of the last ten seconds."""
_WRITING_S = 14.0
_BANDWIDTH_S = 20.0
"""Limit on the wait until the memory has been measured."""
_QUOTA_CORES = 0.5
_QUOTA_PERIOD_US = 100_000
_PROGRAM_BYTES = 240 << 20
"""Memory for the program without its model."""
_PATIENCE_S = 180.0
_REMOVAL_TRIES = 10


class NotPossible(Exception):
    """This machine does not allow a situation; the message is the reason."""


def as_it_is(model: Path) -> AbstractContextManager[None]:
    """Change nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Situation:
    """State of the machine, and what the screen should say of a reply in it."""

    name: str
    expected: str
    """Regular expression for the sentence."""
    surroundings: Callable[[Path], AbstractContextManager[None]] = as_it_is
    """Makes the state for the duration of a block; takes the model's file."""
    prepare: Callable[[], None] = lambda: None
    """Called in the process of the engine before it starts."""
    threads: int = 0
    """Threads that write; 0 for as many as usual."""
    changed_to: int = 0
    """Threads to use from the middle of the reply on; 0 for no change."""
    is_full: bool = False
    """Whether the model is the one of full precision."""


def situations() -> list[Situation]:
    """Return all situations."""
    n_cores = len(os.sched_getaffinity(0))
    bound = r"^bound by (memory|the cores): "
    return [
        Situation("nothing else runs", bound),
        Situation(
            "a model whose weights are not compressed",
            r"^bound by memory: \d+ % of what this machine can read$",
            is_full=True,
        ),
        Situation(
            f"{n_cores} programs compute",
            rf"^other programs use \d\.\d of {n_cores} cores?",
            lambda model: load("while True: pass", n_cores),
        ),
        Situation(
            "a program reads memory",
            rf"^other programs use \d\.\d of {n_cores} cores?",
            lambda model: load("import numpy; a = numpy.ones(1 << 25)\nwhile True: a.sum()", 1),
        ),
        Situation(
            "two threads on one core",
            r"^2 threads share 1 core",
            prepare=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]),
            threads=2,
        ),
        Situation(
            f"a quota of {_QUOTA_CORES} cores",
            rf"^a CPU quota allows {_QUOTA_CORES} of {n_cores} cores?",
            cpu_quota,
        ),
        Situation(
            "memory for a half of the model",
            r"^reading \S+ \S*B/s from disk",
            little_memory,
        ),
        Situation(
            "the user takes a thread away",
            r"^changed from \d threads? to 1 thread",
            threads=max(2, n_cores),
            changed_to=1,
        ),
    ]


@contextmanager
def load(code: str, n_processes: int) -> Iterator[None]:
    """Run processes with a load during the block."""
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command) for _ in range(n_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cpu_quota(model: Path) -> AbstractContextManager[None]:
    """Let the processes that start during the block have a half of a core."""
    quota_us = round(_QUOTA_CORES * _QUOTA_PERIOD_US)
    old = {"cpu.cfs_period_us": f"{_QUOTA_PERIOD_US}", "cpu.cfs_quota_us": f"{quota_us}"}
    return control_group("cpu", {"cpu.max": f"{quota_us} {_QUOTA_PERIOD_US}"}, old)


def little_memory(model: Path) -> AbstractContextManager[None]:
    """Let the processes that start during the block have memory for a half of the model."""
    descriptor = os.open(model, os.O_RDONLY)
    try:  # pages that another group has read would not count
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    limit = f"{_PROGRAM_BYTES + model.stat().st_size // 2}"
    return control_group("memory", {"memory.max": limit}, {"memory.limit_in_bytes": limit})


@contextmanager
def control_group(
    controller: str, limits: Mapping[str, str], old_limits: Mapping[str, str]
) -> Iterator[None]:
    """Put this process into a control group during the block. Raises NotPossible.

    Args:
        limits: files of version 2 with their texts.
        old_limits: those of version 1.
    """
    top = Path("/sys/fs/cgroup")
    if not (top / "cgroup.controllers").exists():
        top = top / controller
        limits = old_limits
    group = top / "jalopy-causes"
    own = str(os.getpid())
    try:
        group.mkdir(exist_ok=True)
        for name, text in limits.items():
            (group / name).write_text(text)
        (group / "cgroup.procs").write_text(own)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise NotPossible(f"no limit can be set: {error.strerror}") from None
    try:
        yield
    finally:
        (top / "cgroup.procs").write_text(own)
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group, as soon as its processes are gone."""
    for _ in range(_REMOVAL_TRIES):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(_LOOK_S)


# ---- the process of the engine


def write_reply(model: Path, situation: Situation) -> str:
    """Write a reply and return the sentence that the screen shows most of the time."""
    situation.prepare()
    from app.backend.status import Activity
    from app.program.settings import load_settings, override
    from app.session.headless import HeadlessChat
    from app.tui.chat_options import chat_options
    from app.tui.speed.watch import PerformanceWatch
    from app.tui.speed.writing_lines import reason_of

    settings = override(load_settings(), "loop_guard", "off", "this program")
    if situation.threads:
        settings = override(settings, "threads", situation.threads, "this program")
    chat = HeadlessChat(chat_options(settings))
    watch = PerformanceWatch(chat.engine_thread)
    watch.register_view(chat, True)
    for _ in chat.open(model):
        watch.sample_reply()
    ends_s = time.monotonic() + _BANDWIDTH_S
    while not chat.engine_thread.state.figures.read_gbps and time.monotonic() < ends_s:
        watch.read_view()
        time.sleep(_LOOK_S)

    sentences: Counter[str] = Counter()
    began_s = 0.0
    is_changed = False
    looked_s = 0.0
    for _ in chat.ask(MESSAGE):
        now_s = time.monotonic()
        if chat.engine_thread.status.activity is not Activity.WRITING:
            continue
        if now_s - looked_s < _LOOK_S:
            continue
        looked_s = now_s
        began_s = began_s or now_s
        watch.look()
        if situation.changed_to and not is_changed and now_s - began_s > _FIRST_LOOK_S / 2:
            is_changed = True
            in_use = chat.engine_thread.state.threads
            if in_use is not None:
                fewer = replace(in_use.now, decode=situation.changed_to)
                chat.engine_thread.request_threads(replace(in_use, now=fewer))
        if now_s - began_s > _FIRST_LOOK_S:
            sentences[reason_of(watch.read_view()).text] += 1
        if now_s - began_s > _WRITING_S:
            break
    ((sentence, _),) = sentences.most_common(1) or [("", 0)]
    return sentence


# ---- the process that makes the situations


def sentence_in(situation: Situation, model: Path) -> str:
    """Return the sentence of the screen in a situation. Raises NotPossible."""
    command = [sys.executable, "-m", "tests.programs.causes", str(model), "--child", situation.name]
    with tempfile.TemporaryDirectory() as home, situation.surroundings(model):
        names = ("CONFIG", "STATE", "DATA", "CACHE")
        homes = {f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in names}
        child = subprocess.run(
            command,
            env={**os.environ, **homes},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    if child.returncode:
        raise NotPossible(f"the engine's process ended with exit code {child.returncode}")
    sentence = json.loads(child.stdout.splitlines()[-1])
    assert isinstance(sentence, str)
    return sentence


def main(arguments: Sequence[str]) -> int:
    """Print a line for each situation; the exit code is the number of wrong sentences."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.causes", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--full", type=Path, help="a file with weights of 16 or 32 bits")
    parser.add_argument("--only", default="", help="part of the names of the situations")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        (situation,) = [each for each in situations() if each.name == options.child]
        print(json.dumps(write_reply(options.model, situation)), flush=True)
        os._exit(0)
    n_wrong = 0
    for situation in situations():
        if options.only not in situation.name:
            continue
        model = options.model
        if situation.is_full:
            model = options.full
        try:
            if model is None:
                raise NotPossible("no file is named by --full")
            sentence = sentence_in(situation, model)
        except NotPossible as reason:
            print(f"left out  {situation.name}: {reason}", flush=True)
            continue
        is_right = re.search(situation.expected, sentence) is not None
        n_wrong += not is_right
        verdict = "right" if is_right else "WRONG"
        print(f"{verdict:<9} {situation.name}: {sentence or 'nothing'}", flush=True)
    return n_wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

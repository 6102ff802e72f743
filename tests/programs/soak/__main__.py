"""``python -m tests.programs.soak --minutes N``: use the real chat as people do, for long, and see that
nothing is lost."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from app.program import exit_codes
from tests.programs.soak import around, endings, talk
from tests.programs.soak.chat import Failed
from tests.programs.soak.home import IN_NAMESPACE, Home
from tests.programs.soak.ledger import Fate, listed_ids
from tests.programs.soak.plan import Step, long_life, plan
from tests.programs.soak.run import Run
from tests.programs.soak.samples import memory_slope, verdict

PROGRESS_S = 30.0
_USUAL_MINUTES = 10.0
_MIB = 1 << 20
STEPS: dict[str, Callable[[Run, Random], None]] = {
    "turn": talk.turn, "long_turn": talk.long_turn, "markdown_turn": talk.markdown_turn,
    "paste": talk.paste,
    "stop": talk.stop, "queue": talk.queue, "regenerate": talk.regenerate, "continue": talk.go_on,
    "edit": talk.edit, "edit_reply": talk.edit_reply, "fork": talk.fork, "compare": talk.compare,
    "new": around.new, "older": around.older, "title": around.title, "delete": around.delete,
    "switch_model": around.switch_model, "threads": around.threads, "read_file": around.read_file,
    "search": around.search, "open_document": around.open_document,
    "copy": around.copy, "screens": around.screens, "palette": around.palette,
    "theme": around.theme,
    "scroll": around.scroll, "resize": around.resize, "suspend": around.suspend,
    "file_limit": endings.file_limit, "full_disk": endings.full_disk,
    "interrupt_twice": endings.interrupt_twice,
    "close_terminal": endings.close_terminal, "quit": endings.quit_chat,
    "quit_writing": endings.quit_writing,
    "read_only_disk": endings.read_only_disk,
    **{kind: partial(endings.end_by_signal, kind) for kind in endings.SIGNALS},
}  # fmt: skip


def main() -> int:
    """Run for some minutes, or some steps."""
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
    ):  # nohup and background jobs hand theirs down
        signal.signal(
            number, signal.SIG_DFL if number is not signal.SIGINT else signal.default_int_handler
        )
    parser = argparse.ArgumentParser(prog="python -m tests.programs.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help="how long to go on (default: 10, with --turns no limit)"
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=0,
        help="use one process for this number of turns, and judge whether it is flat",
    )
    parser.add_argument(
        "--record", type=Path, help="write a line of JSON here for each look at the process"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="end after this number of steps instead, to repeat a failure",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="what is done, and in which order (default: 1)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted(STEPS),
        help="only steps of these kinds",
    )
    options = parser.parse_args()
    _enter_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    root = Path(tempfile.mkdtemp(prefix="jalopy-soak-"))
    home = Home(root)
    run = Run(home, root / "steps.log")
    has_passed = _held(run, options)
    print(_table(run), flush=True)
    if has_passed:
        home.unmount()
        shutil.rmtree(root, ignore_errors=True)
    return 0 if has_passed else 1


def _enter_namespace() -> None:
    """Begin again where file systems can be mounted that end with the run, if this user may do
    that."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None or IN_NAMESPACE in os.environ:
        return
    command = [unshare, "--mount", "--propagation", "private"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        os.environ[IN_NAMESPACE] = "1"
        os.execv(unshare, [*command, sys.executable, "-m", "tests.programs.soak", *sys.argv[1:]])


def _held(run: Run, options: argparse.Namespace) -> bool:
    step: Step | None = None
    began_s = said_s = time.monotonic()
    minutes = options.minutes or (math.inf if options.turns else _USUAL_MINUTES)
    end_s = began_s + 60 * minutes
    run.record = options.record
    try:
        run.start(Random(options.seed))
        steps = long_life(options.seed) if options.turns else plan(options.seed)
        for step in steps:
            if options.only and step.kind not in options.only:
                continue
            now_s = time.monotonic()
            is_enough = options.turns and _n_turns(run) >= options.turns
            if is_enough or (step.number >= options.steps if options.steps else now_s > end_s):
                break
            if now_s - said_s > PROGRESS_S:
                said_s = now_s
                print(_progress(run, now_s - began_s), flush=True)
            _do(run, step)
        if options.turns:
            _judge_long_life(run)
        run.step += 1
        endings.quit_chat(run, Random(0))
        endings.end_by_signal("terminate", run, Random(0))
        run.live.close()
        _check_list(run)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            print("stopped by ctrl+c")
        number, step_name = (step.number, step.kind) if step is not None else (-1, "start")
        reason = (
            str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error))
        )
        print(f"FAILED in step {number} ({step_name}) of seed {options.seed}: {reason}")
        print(f"repeat: python -m tests.programs.soak --seed {options.seed} --steps {number + 1}")
        print(f"evidence: {_keep_evidence(run)}", flush=True)
        return False
    return True


def _n_turns(run: Run) -> int:
    return run.counts["turns"] + run.counts["replies again"]


def _judge_long_life(run: Run) -> None:
    """Say whether the process is as large as after its first ten minutes."""
    samples = max(run.lives, key=len)
    try:
        troubles = verdict(samples)
    except ValueError as error:
        print(f"not judged: {error}", flush=True)
        return
    if troubles:
        raise Failed(f"after {_n_turns(run)} turns: {'; '.join(troubles)}")
    print(f"flat: {len(samples)} looks at one process in {_n_turns(run)} turns", flush=True)


def _do(run: Run, step: Step) -> None:
    run.step = step.number
    run.go_home()
    run.take_sample()
    run.write(f"{step.number} {step.kind}")
    run.counts["steps"] += 1
    STEPS[step.kind](run, step.rng())
    run.live.look_for_errors()


def _check_list(run: Run) -> None:
    """Let the program itself list what is saved."""
    missing = set(run.home.store.ids()) - set(
        listed_ids(run.home.command, run.home.environ, run.home.work)
    )
    if missing:
        raise Failed(f"`jalopy sessions` does not list {sorted(missing)}")


def _keep_evidence(run: Run) -> Path:
    """Write down what is seen, end the program, and copy what a mounted file system holds to where
    it stays."""
    root = run.home.root
    if run.chat is not None:
        size = f"{run.chat.screen.columns}x{run.chat.screen.n_rows}"
        (root / "screen.txt").write_text(
            "\n".join([size, *run.chat.screen.rows()]), encoding="utf-8"
        )
        (root / "output.bin").write_bytes(run.chat.output_tail)
        run.chat.close()
    (root / "said.txt").write_text("\n".join(map(repr, run.ledger.said.values())), encoding="utf-8")
    if run.home.has_disk:
        run.home.free_disk()
        shutil.copytree(
            run.home.state, root / "state-kept", ignore=shutil.ignore_patterns("kv.state*")
        )
    return root


def _progress(run: Run, elapsed_s: float) -> str:
    last = run.lives[-1][-1] if run.lives and run.lives[-1] else None
    memory = "-"
    if last is not None:
        memory = (
            f"{last.anonymous_bytes / _MIB:.0f} MiB, {last.n_descriptors} descriptors, "
            f"{last.n_maps} maps"
        )
    names = ("steps", "turns", "stops", "edits", "endings", "resizes")
    return (
        f"{elapsed_s / 60:5.1f} min  "
        + "  ".join(f"{run.counts[name]} {name}" for name in names)
        + f"  {memory}"
    )


def _table(run: Run) -> str:
    lines = ["", *(f"{name:<44}{n:>10,}" for name, n in sorted(run.counts.items()))]
    lines += [f"{'words looked for on the disk':<44}{run.ledger.n_words:>10,}"]
    gone = Counter(
        message.why_gone for message in run.ledger.said.values() if message.fate is Fate.GONE
    )
    lines += [f"{'messages that are not looked for':<44}{gone.total():>10,}"]
    lines += [f"  {why:<42}{n:>10,}" for why, n in sorted(gone.items())]
    longest = max(run.lives, key=len, default=[])
    if longest:
        edge = max(1, len(longest) // 10)
        first = longest[:edge]
        last = longest[-edge:]
        for name, unit in (
            ("rss_bytes", _MIB),
            ("anonymous_bytes", _MIB),
            ("n_descriptors", 1),
            ("n_threads", 1),
            ("n_maps", 1),
        ):
            values = [
                statistics.median(getattr(sample, name) for sample in quarter) / unit
                for quarter in (first, last)
            ]
            lines.append(f"{f'longest life, {name} first / last' + (' in MiB' if unit > 1 else ''):<44}"
                         f"{values[0]:>10.1f} / {values[1]:.1f}")  # fmt: skip
        lines.append(f"{'longest life, samples':<44}{len(longest):>10,}")
        slope = memory_slope(longest)
        growth = "too short" if slope is None else f"{slope:.1f}"
        lines.append(f"{'memory, MiB in 100 steps':<44}{growth:>10}")
    lines += [
        f"skipped: {name} (needs the right to mount a file system)" for name in sorted(run.skipped)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main() if sys.platform == "linux" else exit_codes.UNSUPPORTED)

"""The benchmark of the interface: what it measures is what it says, and it runs the real chat."""

import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest

from app.program import exit_codes
from tests.engine import tiny_gguf
from tests.programs.interface_bench.__main__ import Figures, main, percentile, report, table
from tests.programs.interface_bench.reply_text import MARKDOWN, pieces
from tests.programs.interface_bench.scenarios import (
    LETTERS,
    ChatRound,
    Plan,
    Start,
    _is_painted,
    _is_ready,
)
from tests.programs.interface_bench.terminal import Events, ProgramFailed, Terminal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 120.0
PLAN = Plan("m.gguf", 2, 100, (100, 30), 1024)


def test_the_reply_is_markdown_of_every_kind_and_never_ends() -> None:
    assert all(
        mark in MARKDOWN
        for mark in ("## ", "1. ", "- ", "|---", "```python", "> ", "**", "`", "](")
    )
    n = len(MARKDOWN) // 4 + 10
    text = "".join(islice(pieces(), n))
    assert text.startswith(MARKDOWN[:40])
    assert MARKDOWN in text + "".join(islice(pieces(), n))


def test_a_typed_letter_appears_nowhere_else() -> None:
    assert len(set(LETTERS)) == len(LETTERS)
    assert not set(LETTERS) & set(MARKDOWN)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.95) == 95.0
    assert percentile(values, 0.5) == 50.0
    assert percentile([3.0], 0.95) == 3.0


def test_the_table_names_ratios_goals_and_what_was_not_there() -> None:
    figures = Figures(
        bench_tps=[10.0, 12.0, 11.0],
        chat=[ChatRound(10.8, 0.05, "ChatScreen")],
        performance=[ChatRound(10.0, 0.1, "ChatScreen")],
        typing=[ChatRound(10.0, 0.1, "ChatScreen", (0.01, 0.02, 0.09))],
        starts=[Start(0.3, 0.8, 0.004), Start(0.6, 1.6, 0.02), Start(0.35, 0.95, 0.005)],
    )
    text = "\n".join(table(PLAN, figures))
    assert "98.2% of bench (goal 97%: met)" in text
    assert "F2 opened no screen" in text
    assert "95th percentile 90 ms of 3 keys (goal 35 ms: NOT met)" in text
    assert "first frame: 0.35 s, best 0.30 s (goal 0.35 s: met)" in text
    assert "ready: 0.95 s, best 0.80 s (goal 0.9 s: NOT met)" in text
    assert "idle: 0.50% of a core (goal 0.7%: met)" in text
    figures.performance = [ChatRound(10.0, 0.1, "PerformanceScreen")]
    assert "90.9% of bench (goal 97%: NOT met)" in "\n".join(table(PLAN, figures))
    assert report(PLAN, figures)["performance_tps"] == [10.0]


def test_a_table_of_one_scenario_needs_no_other() -> None:
    assert len(table(PLAN, Figures(starts=[Start(0.4, 1.0, 0.01)]))) == 4


def test_a_frame_counts_only_on_the_alternate_screen() -> None:
    assert not _is_painted(b"jalopy: compiling")
    assert not _is_painted(b"jalopy\x1b[?1049h\x1b[2J")
    assert _is_painted(b"\x1b[?1049h\x1b[2J\x1b[1;2Hjalopy")
    assert not _is_ready(b"\x1b[?1049h\x1b[2Jjalopy it is sent when the engine is ready")
    assert _is_ready(b"\x1b[?1049h\x1b[2Jjalopy    - tok/s")


def test_keys_go_in_and_what_is_painted_comes_out_with_its_time() -> None:
    terminal = Terminal(
        [sys.executable, "-c", "print('got ' + input())"], dict(os.environ), (80, 24)
    )
    try:
        pressed_s = terminal.press("ζ\r".encode())
        painted_s = terminal.read_until(
            lambda: "got ζ".encode() in terminal.output, "the echo", 30.0
        )
        assert pressed_s < painted_s
    finally:
        terminal.close()


def test_a_program_that_ends_early_is_reported_with_its_output() -> None:
    terminal = Terminal(
        [sys.executable, "-c", "raise SystemExit('no such model')"], dict(os.environ), (80, 24)
    )
    with pytest.raises(ProgramFailed, match="no such model"):
        terminal.read_until(lambda: False, "nothing", 30.0)
    terminal.close()


def test_events_come_whole_however_they_are_cut() -> None:
    events = Events()
    line = json.dumps({"event": "end", "tokens": 3}).encode() + b"\n"
    os.write(events.write_fd, line[:5])
    assert events.last("end") is None
    os.write(events.write_fd, line[5:] + line)
    assert events.last("end") == {"event": "end", "tokens": 3}
    assert len(events.seen) == 2
    events.close()


def test_the_real_chat_is_measured_over_a_real_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_gguf.write(tmp_path / "m.gguf", context_length=512)
    options = "-r 1 -n 40 -t 1 --ctx 512 --idle-s 0.3 --only chat start steps"
    assert main([str(model), *options.split()]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["chat_tps"][0] > 0
    assert 0 < figures["first_frame_s"][0] < figures["ready_s"][0]
    assert figures["idle_share"][0] >= 0
    assert figures["bench_tps"] == []
    assert list(figures["start_steps_s"])[-1] == "painting"
    assert all(seconds >= 0 for seconds in figures["start_steps_s"].values())


def test_a_signal_ends_the_chat_that_it_runs(tmp_path: Path) -> None:
    model = tiny_gguf.write(tmp_path / "m.gguf", context_length=512)
    command = [sys.executable, "-m", "tests.programs.interface_bench", str(model), "-t", "1"]
    command += ["--ctx", "512", "--only", "chat"]
    bench = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    give_up_s = time.monotonic() + _PATIENCE_S
    chats: list[psutil.Process] = []
    # one that has begun is known to who started it
    while not any(chat.num_threads() > 1 for chat in chats):
        assert time.monotonic() < give_up_s
        assert bench.poll() is None
        time.sleep(0.05)
        chats = psutil.Process(bench.pid).children(recursive=True)
    bench.terminate()
    assert bench.wait(_PATIENCE_S) == exit_codes.TERMINATED
    _, alive = psutil.wait_procs(chats, _PATIENCE_S)
    for chat in alive:
        chat.kill()
    assert not alive

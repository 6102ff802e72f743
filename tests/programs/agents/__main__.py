"""Let real agents for programming read a file with the help of ``jalopy serve``.

Run ``python -m tests.programs.agents MODEL [--only NAME] [--force-calls] [--ctx N] [--keep DIR]``.

The agents are installed with npm and pip into a scratch folder; those that cannot be are named. The
server runs on a free port with a configuration of its own (compiled kernels are shared). The agents
run one by one, each in an empty home, configured with the lines of the manual's page ``editors``.
Each is asked once what is in a file, which takes a call of a tool, its result, and an answer.

A small model may call the same tool again and again, so it may not call any more after three
results; a line says so. Nor may it choose to call a tool at all. With ``--force-calls``, a relay
between the agents and the server makes the first reply a call that reads the file, by
``tool_choice`` and the tool's schema, and the next one a given answer. This tests the protocol and
says nothing about the model, so a tiny model with random weights will do; it must have a large
context (``--ctx 131072`` if each byte is a token) and a template with tools.

It ends with 1 where an installed agent made no round trip. The first request of Claude Code or Qwen
Code has nearly 20,000 tokens: minutes on an old machine. POSIX systems only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.programs.agents.agent_programs import AGENTS, NOTE, Agent, Place, install
from tests.programs.agents.relay import Exchange, Relay

ROOT = Path(__file__).resolve().parents[3]
OWN_FOLDERS = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state"}
"""Folders of the server, apart from those of the user."""
START_LIMIT_S = 1800.0
"""Limit on opening the model: the first start may compile kernels."""
LIMIT_S = 1800.0
END_LIMIT_S = 30.0
REPLY = re.compile(r"reply \w+: (\d+) prompt tokens \((\d+) cached\)")
HEADING = (
    f"{'agent':<10}{'requests':>9}{'accepted':>9}{'call':>6}{'result':>7}{'answer':>7}"
    f"{'seconds':>9}{'read':>8}{'cached':>8}"
)


@dataclass
class RoundTrip:
    """Outcome of one question to one agent."""

    exchange: Exchange
    answer: str
    """Text that the agent printed; empty if it failed."""
    errors: str
    seconds: float
    n_read: int
    n_cached: int

    def is_whole(self, has_tools: bool) -> bool:
        """Return whether every step took place."""
        exchange = self.exchange
        accepted = 0 < exchange.n_requests == exchange.n_accepted
        return accepted and bool(self.answer) and (exchange.returned or not has_tools)

    def row(self, name: str, has_tools: bool) -> str:
        """Return the outcome as a row of the table."""
        exchange = self.exchange
        call, result = "-", "-"
        if has_tools:
            call, result = _word(exchange.called), _word(exchange.returned)
        return (
            f"{name:<10}{exchange.n_requests:>9}{exchange.n_accepted:>9}{call:>6}{result:>7}"
            f"{_word(bool(self.answer)):>7}{self.seconds:>9.1f}{self.n_read:>8}{self.n_cached:>8}"
        )


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"


class Server:
    """A ``jalopy serve`` with a configuration of its own."""

    def __init__(self, model: str, folder: Path, n_ctx: int) -> None:
        self._log_file = folder / "serve.log"
        environment = os.environ | {name: str(folder / sub) for name, sub in OWN_FOLDERS.items()}
        context = ["--ctx", str(n_ctx)] if n_ctx else []
        with self._log_file.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", model, "--port", "0", *context],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )

    def log(self) -> str:
        """Return what the server has logged."""
        return self._log_file.read_text(errors="replace")

    def address(self) -> tuple[str, str]:
        """Wait until the model is open; return the address and the model's name."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while " ready " not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the server does not start:\n{self.log()}")
            time.sleep(0.5)
        match = re.search(r"^jalopy serve: (\S+) at (http://\S+)/v1", self.log(), re.MULTILINE)
        if match is None:
            raise SystemExit(f"the server does not say where it listens:\n{self.log()}")
        return match[2], match[1]

    def end(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_LIMIT_S)


def ask(agent: Agent, place: Place, relay: Relay, server: Server, limit_s: float) -> RoundTrip:
    """Ask an agent what is in the file, and count what passed between it and the server."""
    exchange = Exchange()
    relay.exchange = exchange
    place.home.mkdir(parents=True)
    place.work.mkdir(parents=True)
    (place.work / "note.txt").write_text(NOTE)
    command = agent.prepare(place)

    n_logged = len(server.log())
    started_s = time.monotonic()
    process = subprocess.Popen(
        command.words,
        cwd=place.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=_environment(place) | command.variables,
        start_new_session=True,
    )
    errors = ""
    answer = ""
    try:
        answer, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        errors = f"not done after {limit_s:.0f} s"
    finally:
        end_processes(place.home)
        process.wait(END_LIMIT_S)
    seconds = time.monotonic() - started_s

    replies = REPLY.findall(server.log()[n_logged:])
    n_cached = sum(int(cached) for _prompt, cached in replies)
    n_read = sum(int(prompt) for prompt, _cached in replies) - n_cached
    if process.returncode != 0:
        errors, answer = errors or answer or f"exit code {process.returncode}", ""
    return RoundTrip(exchange, answer.strip(), errors.strip(), seconds, n_read, n_cached)


def _environment(place: Place) -> dict[str, str]:
    """Return variables without any key or setting of the user."""
    names = ("PATH", "LANG", "TMPDIR")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return variables | {"HOME": str(place.home), "TERM": "dumb", "NO_COLOR": "1"}


def end_processes(home: Path) -> None:
    """End every process whose home is the given scratch folder."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                processes.append(process)
                process.kill()
    psutil.wait_procs(processes, timeout=END_LIMIT_S)


def run(options: argparse.Namespace, folder: Path) -> int:
    """Install the agents, serve the model and ask each agent; return the exit code."""
    programs = folder / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    agents = {}
    for name in options.only or AGENTS:
        failure = install(AGENTS[name], programs)
        if failure:
            print(f"{name}: not installed: {failure}", flush=True)
        else:
            agents[name] = AGENTS[name]
    if not agents:
        return 1

    runs = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    server = Server(options.model, runs, options.ctx)
    n_failed = 0
    try:
        url, model = server.address()
        relay = Relay(url)
        print(HEADING, flush=True)
        for name, agent in agents.items():
            place = Place(programs, runs / name / "home", runs / name / "work", relay.url, model)
            if options.force_calls:
                relay.forced_call = agent.forced_call(place)
            trip = ask(agent, place, relay, server, options.limit)
            has_tools = bool(agent.tool)
            print(trip.row(name, has_tools), flush=True)
            if trip.exchange.calls_were_ended:
                print("    the model repeated its call until it might not call", flush=True)
            if not trip.is_whole(has_tools):
                n_failed += 1
                details = (*trip.exchange.errors, trip.errors, trip.answer)
                print(*(f"    {line[-300:]!r}" for line in details if line), sep="\n", flush=True)
        relay.close()
    finally:
        server.end()
    return 1 if n_failed else 0


def main(arguments: Sequence[str]) -> int:
    """Read the arguments and run in a scratch folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.agents", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--only", nargs="+", choices=list(AGENTS), help="these agents alone")
    parser.add_argument(
        "--force-calls", action="store_true", help="make the model call a tool, by tool_choice"
    )
    parser.add_argument(
        "--ctx", type=int, default=0, metavar="N", help="context of the server (its own choice)"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for each agent (1800)"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="install and run there, use what is installed there, and keep all of it",
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # everything started is ended, too
    if options.keep is not None:
        return run(options, options.keep.resolve())

    folder = Path(tempfile.mkdtemp(prefix="jalopy-agents-"))
    try:
        return run(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Agents for programming: how each is installed, configured and asked one question."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.server.program_setup import setup_lines
from tests.programs.agents.relay import ForcedCall

QUESTION = "Read the file note.txt and say what is in it."
NOTE = "The blue key opens the shed.\n"
INSTALL_LIMIT_S = 900.0


@dataclass(frozen=True)
class Place:
    """Where an agent runs, and the model that it is to ask.

    Args:
        programs: Folder of the installed programs.
        home: Home of the agent, with no configuration.
        work: Folder with the file ``note.txt``, in which the agent starts.
        url: Address of the server, without a path.
        model: Name of the model for clients.
    """

    programs: Path
    home: Path
    work: Path
    url: str
    model: str

    def npm_program(self, name: str) -> str:
        """Return the path of a program that npm installed."""
        return str(self.programs / "node_modules" / ".bin" / name)

    def lines(self, program: str) -> str:
        """Return the configuration that ``jalopy serve --for`` prints."""
        return "\n".join(setup_lines(program, self.url, self.model)) + "\n"


@dataclass(frozen=True)
class Command:
    """A command line, and variables that belong to it."""

    words: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class Agent:
    """An agent.

    Args:
        package: Name of its package.
        command: Name of its program.
        tool: Name of the tool with which it reads a file; "" if it has no tools.
        argument: Name of the tool's argument.
        prepare: Writes its configuration, and returns the command that asks the question.
    """

    package: str
    command: str
    tool: str
    argument: str
    prepare: Callable[[Place], Command]
    is_python: bool = False

    def forced_call(self, place: Place) -> ForcedCall:
        """Return the call that reads the file."""
        file = str(place.work / "note.txt")
        value = f"cat {shlex.quote(file)}" if self.argument == "cmd" else file
        return ForcedCall(self.tool, {self.argument: value})


def prepare_opencode(place: Place) -> Command:
    (place.work / "opencode.json").write_text(place.lines("opencode"))
    variables = {"OPENCODE_PERMISSION": '{"edit": "deny", "bash": "deny", "webfetch": "deny"}'}
    return Command([place.npm_program("opencode"), "run", QUESTION], variables)


def prepare_qwen(place: Place) -> Command:
    """The last line starts the program, here with the question."""
    script = f"{place.lines('qwen').rstrip()} {shlex.quote(QUESTION)}"
    return Command(["sh", "-c", script], _search_path(place.programs / "node_modules" / ".bin"))


def prepare_codex(place: Place) -> Command:
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(place.lines("codex"))
    options = ["exec", "--skip-git-repo-check", "--sandbox", "read-only"]
    return Command([place.npm_program("codex"), *options, QUESTION], {})


def prepare_claude(place: Place) -> Command:
    """The lines are for a shell, so a shell reads them."""
    words = [place.npm_program("claude"), "-p", QUESTION, "--allowedTools", "Read"]
    return Command(["sh", "-c", f"{place.lines('claude')}exec {shlex.join(words)}"], {})


def prepare_pi(place: Place) -> Command:
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    (folder / "models.json").write_text(place.lines("pi"))
    words = [place.npm_program("pi"), "--provider", "jalopy", "--model", place.model]
    return Command([*words, "--tools", "read", "-p", QUESTION], {})


def prepare_aider(place: Place) -> Command:
    """The file is named, since Aider's models have no tools."""
    options = ["--no-git", "--no-check-update", "--no-show-model-warnings", "--yes-always"]
    options += ["--analytics-disable", "--chat-mode", "ask", "--read", "note.txt"]
    words = shlex.join([*options, "--message", QUESTION])
    variables = _search_path(place.programs / "aider" / "bin")
    variables["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network first
    return Command(["sh", "-c", f"{place.lines('aider').rstrip()} {words}"], variables)


def _search_path(folder: Path) -> dict[str, str]:
    """Return the variable that lets a shell find the programs of a folder first."""
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


AGENTS = {
    "pi": Agent("@mariozechner/pi-coding-agent", "pi", "read", "path", prepare_pi),
    "aider": Agent("aider-chat", "aider", "", "", prepare_aider, is_python=True),
    "codex": Agent("@openai/codex", "codex", "exec_command", "cmd", prepare_codex),
    "opencode": Agent("opencode-ai", "opencode", "read", "filePath", prepare_opencode),
    "qwen": Agent("@qwen-code/qwen-code", "qwen", "read_file", "file_path", prepare_qwen),
    "claude": Agent("@anthropic-ai/claude-code", "claude", "Read", "file_path", prepare_claude),
}
"""Agents by name, those with the shortest prompts first."""


def install(agent: Agent, programs: Path) -> str:
    """Install an agent where it is missing; return one line on what failed, or ""."""
    if agent.is_python:
        folder = programs / agent.command
        if (folder / "bin" / agent.command).exists():
            return ""
        return _failure([sys.executable, "-m", "venv", str(folder)]) or _failure(
            [str(folder / "bin" / "pip"), "install", "--quiet", agent.package]
        )

    if (programs / "node_modules" / ".bin" / agent.command).exists():
        return ""
    prefix = ["--prefix", str(programs), "--no-audit", "--no-fund", "--loglevel", "error"]
    return _failure(["npm", "install", *prefix, agent.package])


def _failure(words: list[str]) -> str:
    """Run a command; return the last line that it printed if it fails, or ""."""
    try:
        run = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
    except FileNotFoundError:
        return f"{words[0]} is not on this machine"
    except subprocess.TimeoutExpired:
        return f"{words[0]} took more than {INSTALL_LIMIT_S:.0f} s"
    if run.returncode == 0:
        return ""
    lines = (run.stderr or run.stdout).strip().splitlines() or ["no output"]
    return f"{words[0]}: {lines[-1][:200]}"

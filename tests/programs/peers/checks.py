"""Checks that must pass with any server.

Each raises Failed or returns a few words about what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from app.conversations.conversation import Role
from app.conversations.store import Store
from tests.programs.peers.server import N_CTX, PeerServer
from tests.programs.soak.chat import ESCAPE, Chat, Failed

_LONG = "Write a long story about the sea."
_SCHEMA = {"type": "object", "properties": {"sky": {"enum": ["blue", "red"]}}, "required": ["sky"]}
_TOOLS = Path(__file__).parents[2] / "app" / "tools" / "mcp" / "hostile_server.py"
_CALM_S = 2.0
"""A yes counts once no other key came for a moment."""
_SETTINGS = """
[sampling]
temperature = 0
seed = 1
max_tokens = {n_tokens}
"""


class Desk:
    """A user's folder, and the program run in it against one server."""

    def __init__(self, server: PeerServer, root: Path, patience_s: float, n_tokens: int) -> None:
        self.server = server
        self.root = root
        self.patience_s = patience_s
        self._n_tokens = n_tokens
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "JALOPY_"))
        }
        places = {
            f"XDG_{name}_HOME": str(root / name.lower())
            for name in ("CONFIG", "STATE", "DATA", "CACHE")
        }
        self.environ = {
            **inherited,
            **places,
            "HOME": str(root),
            "TERM": "xterm-256color",
            "PYTHONUNBUFFERED": "1",
        }
        self.settle_for("")

    def settle_for(self, lines: str) -> None:
        """Write the settings."""
        path = self.root / "config" / "jalopy" / "settings.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_SETTINGS.format(n_tokens=self._n_tokens) + lines, encoding="utf-8")

    def command(self, *words: str) -> list[str]:
        """Return a command line of the program."""
        return [str(Path(sys.executable).with_name("jalopy")), *words, "--server", self.server.url]

    def started(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the program with pipes; ``run`` would wait for all of its input."""
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if words[0] == "run" else subprocess.PIPE
        command = self.command(*words)
        return subprocess.Popen(
            command, stdin=stdin, stdout=pipe, stderr=pipe, env=self.environ, cwd=self.root
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run it to its end."""
        process = self.started(*words)
        try:
            out, err = process.communicate(timeout=self.patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"{words[0]} does not end") from None
        return process.returncode, out.decode(), err.decode()

    def chat(self) -> Chat:
        """Start the chat on a pseudo-terminal."""
        chat = Chat(self.command("chat"), self.environ, self.root, (100, 40))
        if not chat.becomes(lambda: "│ ready" in _shown(chat), self.patience_s):
            chat.close()
            raise Failed(f"the server's model does not come: {_shown(chat).split()}")
        return chat


def _require(holds: object, reason: str) -> None:
    if not holds:
        raise Failed(reason)


def _first_piece(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 1 << 16)


def _one_line(err: str, situation: str) -> str:
    lines = [line for line in err.splitlines() if line.strip()]
    _require(lines and "Traceback" not in err, f"{situation}: {err!r}")
    return lines[-1]


def streamed(desk: Desk) -> str:
    """The answer comes piece by piece."""
    process = desk.started("run", "-p", "Count from 1 to 9.")
    assert process.stdout is not None
    pieces = list(iter(lambda: _first_piece(process), b""))
    _require(process.wait() == 0, f"exit code {process.returncode}")
    _require(len(pieces) > 2, f"{len(pieces)} pieces")
    return f"{len(pieces)} pieces"


def stopped_by_interrupt(desk: Desk) -> str:
    """Ctrl-C ends a reply of ``run``, and the server computes no more of it."""
    process = desk.started("run", "-n", "1500", "-p", _LONG)
    _require(_first_piece(process), "nothing came")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=desk.patience_s)
    _require(process.returncode == 130, f"exit code {process.returncode}")
    _require(desk.server.is_at_rest(), "the server goes on computing")
    return "130, and the server is at rest"


def stopped_and_continued(desk: Desk) -> str:
    """Esc ends a reply of the chat, the server computes no more, and /continue goes on with it."""
    chat = desk.chat()
    try:
        chat.press(_LONG + "\r")
        chat.wait_for(lambda: len(_reply(desk)) > 1, "a reply", desk.patience_s)
        chat.press(ESCAPE)
        chat.wait_for(lambda: "stopped" in _shown(chat), "the end of the reply", desk.patience_s)
        _require(desk.server.is_at_rest(), "the server goes on computing")
        first_reply = _reply(desk)
        chat.press("/continue\r")
        chat.wait_for(
            lambda: len(_reply(desk)) > len(first_reply), "more of the reply", desk.patience_s
        )
        _require(_reply(desk).startswith(first_reply[:20]), "the reply begins again")
        chat.press(ESCAPE)
        chat.settle()
        chat.press("/quit\r")
        _require(chat.wait_for_end() == 0, f"exit code {chat.exit_code}")
        return f"at rest after Esc, {len(first_reply)} characters kept; /continue goes on"
    finally:
        chat.close()


def tools(desk: Desk) -> str:
    """A call is asked about, runs, and its result is answered."""
    desk.settle_for(
        f'[tools]\nuse = "on"\n[tools.servers.own]\ncommand = ["{sys.executable}", "{_TOOLS}"]\n'
    )
    chat = desk.chat()
    try:
        chat.press('Use the tool echo to say the text "blue". Call it now.\r')
        if not chat.becomes(lambda: "Run echo?" in _shown(chat), desk.patience_s):
            raise Failed(f"the model called nothing: {_shown(chat).split()}")
        time.sleep(_CALM_S)
        chat.press("y")
        chat.wait_for(lambda: "+ echo" in _shown(chat), "the result", desk.patience_s)
        chat.wait_for(
            lambda: "/s" in _shown(chat).partition("+ echo")[2],
            "the answer after it",
            desk.patience_s,
        )
        return "asked, ran, answered"
    finally:
        chat.close()
        desk.settle_for("")


def _replies(desk: Desk) -> list[str]:
    """Return the replies of the newest conversation, as its file has them."""
    store = Store(desk.root / "state" / "jalopy" / "conversations")
    ids = store.ids()
    messages = store.read(ids[-1]).conversation.messages if ids else []
    return [message.text for message in messages if message.role is Role.ASSISTANT]


def _reply(desk: Desk) -> str:
    return (_replies(desk) or [""])[-1]


def _shown(chat: Chat) -> str:
    return "\n".join(chat.screen.rows())


def form(desk: Desk) -> str:
    """An answer follows a schema."""
    path = desk.root / "schema.json"
    path.write_text(json.dumps(_SCHEMA), encoding="utf-8")
    code, out, err = desk.run(
        "run", "--schema", str(path), "-n", "60", "-p", "What colour is the sky?"
    )
    _require(code == 0, f"exit code {code}: {err!r}")
    _require(json.loads(out).get("sky") in ("blue", "red"), f"not of the form: {out!r}")
    return out.strip()


def refused(desk: Desk) -> str:
    """A message that the context cannot hold is one line."""
    code, _, err = desk.run("run", "-p", "sea " * (2 * N_CTX))
    line = _one_line(err, "no line")
    _require(code not in (0, 130), f"exit code {code}: {line}")
    return f"{code}: {line[:90]}"


def killed(desk: Desk) -> str:
    """A server that dies within a reply is one line; the part is kept; started again, it
    answers."""
    process = desk.started("chat", "--plain")
    assert process.stdin is not None
    process.stdin.write(_LONG.encode() + b"\n")
    process.stdin.flush()
    received = _first_piece(process)
    desk.server.kill()
    _require(received.strip(), "nothing came")
    desk.server.start()
    process.stdin.write(b"Say hello.\n")
    out, raw_err = process.communicate(timeout=desk.patience_s)
    err = raw_err.decode()
    lines = [
        line
        for line in err.splitlines()
        if desk.server.url[7:] in line and "computed by" not in line
    ]
    _require(len(lines) == 1 and "Traceback" not in err, f"not one line: {err!r}")
    _require(process.returncode == 0, f"exit code {process.returncode}")
    _require(
        out.strip() and err.count(" · first word after") == 1, f"no answer afterwards: {err!r}"
    )
    _require(received.decode().strip()[:8] in _replies(desk)[0], "what came is not kept")
    return lines[0][:90]


CHECKS: Sequence[Callable[[Desk], str]] = (
    streamed, stopped_by_interrupt, stopped_and_continued, tools, form, refused, killed,
)  # fmt: skip

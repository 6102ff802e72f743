"""A server of another project, as its own environment starts it: up, at rest, killed, up again at
the same place."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

NAME = "peer"
_IDLE_SHARE = 0.25
"""Share of a core: a server that computes uses more, one that waits uses less."""
_WINDOW_S = 2.0
N_CTX = 2048


def _vllm(model: Path, port: int) -> list[str]:
    return [
        "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name",
        NAME,
        "--port", str(port), "--host", "127.0.0.1", "--max-model-len", str(N_CTX), "--max-num-seqs",
        "2",
        "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    ]  # fmt: skip


def _llama_cpp(model: Path, port: int) -> list[str]:
    return [
        "-m", "llama_cpp.server", "--model", str(model), "--model_alias", NAME, "--host",
        "127.0.0.1",
        "--port", str(port), "--n_ctx", str(N_CTX), "--n_threads", "2",
    ]  # fmt: skip


def _jalopy(model: Path, port: int) -> list[str]:
    return ["-m", "app", "serve", str(model), "--port", str(port), "--ctx", str(N_CTX)]


KINDS: dict[str, Callable[[Path, int], list[str]]] = {
    "vllm": _vllm,
    "llama-cpp": _llama_cpp,
    "jalopy": _jalopy,
}


def free_port() -> int:
    """Return a port that no one uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class PeerServer:
    """``python``: of the environment that has the server; ``root``: an empty folder that it runs
    in."""

    def __init__(self, kind: str, python: str, model: Path, root: Path, patience_s: float) -> None:
        port = free_port()
        self._command = [os.path.abspath(python), *KINDS[kind](model.absolute(), port)]
        self.url = f"http://127.0.0.1:{port}"
        self._root = root
        self._patience_s = patience_s
        self._log = root / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    def start(self) -> None:
        """Start it, and wait until it answers. Raises RuntimeError: it ends, or takes too long."""
        environ = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._root,
                env=environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        give_up_s = time.monotonic() + self._patience_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"the server does not start: see {self._log}")
            time.sleep(0.5)
        self._note_family()

    def _answers(self) -> bool:
        """Whether it answers a question, which some refuse for a while after they list their
        models."""
        with contextlib.suppress(OSError, ValueError, LookupError):
            name = self._asked("/models", None)["data"][0]["id"]
            body = {
                "model": name,
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "hi"}],
            }
            return bool(self._asked("/chat/completions", json.dumps(body).encode())["choices"])
        return False

    def _asked(self, path: str, body: bytes | None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/v1{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=self._patience_s) as answer:
            return json.load(answer)

    def _note_family(self) -> None:
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            self._family = [first, *first.children(recursive=True)]

    def is_at_rest(self) -> bool:
        """Whether it comes to compute nothing, within the time that things have."""
        give_up_s = time.monotonic() + self._patience_s
        while time.monotonic() < give_up_s:
            before_s = self._cpu_s()
            time.sleep(_WINDOW_S)
            if self._cpu_s() - before_s < _IDLE_SHARE * _WINDOW_S:
                return True
        return False

    def _cpu_s(self) -> float:
        times_s = 0.0
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                times_s += used.user + used.system
        return times_s

    def kill(self) -> None:
        """End it at once, with all its processes."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._note_family()
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()

"""``jalopy serve``: the API from its first line to its end.

Starlette and uvicorn are imported when it is called.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from app.models.library.choose_model import choose_model
from app.program import exit_codes, garbage, paths
from app.program.bundled_model import is_starter
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.program.small_file import read_text
from app.text.clean_text import clean_line

KEY_VARIABLE = "JALOPY_API_KEY"
LEAST_KEY_CHARS = 16
MOST_KEY_CHARS = 512
_MOST_KEY_FILE_BYTES = 4096
_MOST_NAME_CHARS = 100
IDLE_MINUTES = 15


def serve(
    settings: Settings,
    model: str | None,
    host: str,
    port: int,
    alias: str,
    api_key_file: str,
    allow_host: Sequence[str],
    most_waiting: int,
    most_at_once: int,
    idle_minutes: float | None,
) -> int:
    """Answer requests until a signal ends it.

    Args:
        model: that is served, whatever name a request has; None for those of this machine by their
            names.
        alias: by which clients know the model; "" for the file's name.
        allow_host: further names by which the server may be called.
        most_at_once: requests that are answered at once; 0 for as many as pay.
        idle_minutes: after which a model is closed that a request chose; 0 for never, None for
            ``IDLE_MINUTES``.

    Raises:
        EngineError: the model cannot be used.
        Refusal: something is missing, or an option is wrong.
        OSError: the address cannot be used.
    """
    api_key = _api_key(api_key_file)
    if not is_loopback(host) and not api_key:
        why = "can be reached from other machines: that needs an API key"
        raise Refusal(f"jalopy serve: --host {host} {why} ({KEY_VARIABLE}, or --api-key-file FILE)")
    if alias and not model:
        raise Refusal("jalopy serve: --alias names one model (jalopy serve MODEL --alias NAME)")
    if model and idle_minutes is not None:
        raise Refusal(
            "jalopy serve: --idle-minutes is for models that requests choose (leave MODEL out)"
        )
    path = choose_model(model, settings)
    garbage.keep_memory_together()
    from app.server.http_server import RunningServer

    with listen(host, port) as listener:
        model_id = alias or (model_id_of(path) if model and path else "")
        idle_s = 60.0 * (IDLE_MINUTES if idle_minutes is None else idle_minutes)
        if path:
            served = Path(path)
        else:
            served = None
        names = (host, *allow_host)
        return RunningServer(
            served, settings, listener, model_id, names, api_key, most_waiting, most_at_once, idle_s
        ).run()


def model_id_of(path: str | Path) -> str:
    """Return the name by which clients know a model: that of its file."""
    if is_starter(path):
        return "starter"
    return clean_line(Path(path).stem, _MOST_NAME_CHARS) or "model"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections. Raises Refusal: the address cannot be used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        else:
            why = str(error)
        cure = "choose another --host or --port"
        raise Refusal(f"jalopy serve: {host}:{port}: {why} ({cure})", exit_codes.IO_ERROR) from None
    return listener


def _api_key(file: str) -> str:
    """Return the key that requests must bring: of the file, or of the environment; "" for none.

    On the command line, it could be read by other users of the machine.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if file:
        key = read_text(paths.expanded(file), "API key", _MOST_KEY_FILE_BYTES)
    key = key.strip()
    if not (key or file):
        return ""
    is_right = (
        LEAST_KEY_CHARS <= len(key) <= MOST_KEY_CHARS
        and key.isascii()
        and key.isprintable()
        and " " not in key
    )
    if not is_right:
        if file:
            where = f"--api-key-file {file}"
        else:
            where = KEY_VARIABLE
        form = f"{LEAST_KEY_CHARS} to {MOST_KEY_CHARS} letters, figures and signs without a space"
        raise Refusal(f"jalopy serve: {where}: the key must be {form}", exit_codes.BAD_DATA)
    return key

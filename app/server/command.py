"""The command ``jalopy serve``.

Starlette and uvicorn are imported when it runs.
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
MIN_KEY_CHARS = 16
MAX_KEY_CHARS = 512
_MAX_KEY_FILE_BYTES = 4096
_MAX_NAME_CHARS = 100
IDLE_MINUTES = 15


def serve(
    settings: Settings,
    model: str | None,
    host: str,
    port: int,
    alias: str,
    api_key_file: str,
    allow_host: Sequence[str],
    max_waiting: int,
    max_at_once: int,
    idle_minutes: float | None,
    program: str | None = None,
    suffix_first: bool = False,
) -> int:
    """Answer requests until a signal comes, and return the exit code.

    Args:
        settings: Settings of the program.
        model: The only model, which answers to every name. None to let requests choose among the
            models of this machine.
        host: Address to listen at.
        port: Port to listen at.
        alias: Name of the model for clients; "" for the name of its file.
        api_key_file: File with the API key; "" for none.
        allow_host: Additional host names of the server.
        max_waiting: Limit on waiting requests.
        max_at_once: Limit on replies that are written at once; 0 for as many as are useful.
        idle_minutes: Time after which a model that a request chose is closed; 0 for never, None for
            ``IDLE_MINUTES``.
        program: Program whose lines of configuration are printed instead; None to serve.
        suffix_first: Whether the text after a gap comes first in prompts that fill it.

    Raises:
        EngineError: The model cannot be used.
        Refusal: An option is missing or wrong.
        OSError: The address cannot be used.
    """
    api_key = _api_key(api_key_file)
    if not is_loopback(host) and not api_key:
        raise Refusal(
            f"jalopy serve: --host {host} can be reached from other machines, which needs an API "
            f"key ({KEY_VARIABLE}, or --api-key-file FILE)"
        )
    if alias and not model:
        raise Refusal("jalopy serve: --alias names one model (jalopy serve MODEL --alias NAME)")
    if model and idle_minutes is not None:
        raise Refusal(
            "jalopy serve: --idle-minutes is for models that requests choose (leave MODEL out)"
        )

    folder = settings.serve.pictures
    if folder and not paths.expanded(folder).is_dir():
        raise Refusal(
            f"jalopy serve: {clean_line(folder, 200)}: there is no such folder for pictures "
            "(--pictures, or pictures in [serve] of the settings)",
            exit_codes.UNREADABLE,
        )
    path = choose_model(model, settings)
    if program is not None:
        model_id = alias
        if not alias and path:
            model_id = model_id_of(path)
        _print_setup(program, host, port, model_id)
        return exit_codes.OK
    garbage.keep_memory_together()
    from app.server.http_server import HttpServer

    with listen(host, port) as listener:
        model_id = alias
        if not alias and model and path:
            model_id = model_id_of(path)
        if idle_minutes is None:
            idle_minutes = IDLE_MINUTES
        server = HttpServer(
            Path(path) if path else None,
            settings,
            listener,
            model_id,
            (host, *allow_host),
            api_key,
            max_waiting,
            max_at_once,
            60.0 * idle_minutes,
            suffix_first,
        )
        return server.run()


def _print_setup(program: str, host: str, port: int, model_id: str) -> None:
    """Print the lines that make a program use the server."""
    from app.server.program_setup import setup_lines

    if ":" in host:
        host = f"[{host}]"
    for line in setup_lines(program, f"http://{host}:{port}", model_id):
        print(line)


def model_id_of(path: str | Path) -> str:
    """Return the name of a model for clients: the name of its file."""
    if is_starter(path):
        return "starter"
    return clean_line(Path(path).stem, _MAX_NAME_CHARS) or "model"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        Refusal: The address cannot be used.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, socket_type, protocol, _, address = addresses[0]
        listener = socket.socket(family, socket_type, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise Refusal(
            f"jalopy serve: {host}:{port}: {reason} (choose another --host or --port)",
            exit_codes.IO_ERROR,
        ) from None
    return listener


def _api_key(file: str) -> str:
    """Return the key that requests must have, from the file or the environment; "" for none.

    On the command line, other users of the machine could read it.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if file:
        key = read_text(paths.expanded(file), "API key", _MAX_KEY_FILE_BYTES)
    key = key.strip()
    if not (key or file):
        return ""

    is_valid = (
        MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS
        and key.isascii()
        and key.isprintable()
        and " " not in key
    )
    if not is_valid:
        source = f"--api-key-file {file}" if file else KEY_VARIABLE
        raise Refusal(
            f"jalopy serve: {source}: the key must be {MIN_KEY_CHARS} to {MAX_KEY_CHARS} letters, "
            "digits and signs without a space",
            exit_codes.BAD_DATA,
        )
    return key

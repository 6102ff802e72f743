"""From arguments to settings to a command, with an exit code for every end.

Whatever goes wrong before the first screen is one line on stderr. Commands are imported when they
are called, so that ``--help`` loads neither numba nor Textual.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import NoReturn

from app.cli import arguments
from app.cli.supervisor import supervise
from app.program import exit_codes, notices
from app.program.refusals import Refusal, refuse, say
from app.program.remote_model import RemoteModel, server_address
from app.program.screen_size import ignore_impossible_sizes
from app.program.settings import Settings, load_settings, override
from engine.machine import address_space

_OPENING = ("run", "read", "bench", "tune")
"""Commands that open a model and begin no chat."""
_ELSEWHERE = {
    "compare": "app.cli.compare.command",
    "help": "app.program.manual",
    "inspect": "app.models.library.inspect",
    "report": "app.models.library.report_card",
    "serve": "app.server.command",
}
"""Modules of commands that are not in ``app.cli``.

A command's module has a function of its name, which is given by name what it takes: options, the
settings ``threads`` and ``weights``, ``settings`` as a whole, and ``options``, where there is a
class ``NameOptions`` to collect them.
"""


class _TerminatedError(BaseException):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")  # no character of any locale raises an exception
    ignore_impossible_sizes(os.environ)
    if sys.stdout is None:
        say("jalopy: standard output is closed (open it, or redirect it to a file)")
        return exit_codes.USAGE
    return guard(partial(_start, sys.argv[1:] if argv is None else argv))


def guard(work: Callable[[], int]) -> int:
    """Do the work; turn whatever ends it into one line and an exit code.

    Lines on files that were mended come before that line.
    """
    code = _guarded(work)
    for line in notices.take_all():
        say(f"jalopy: {line}")
    return code


def _guarded(work: Callable[[], int]) -> int:
    signal.signal(signal.SIGTERM, partial(_end, exit_codes.TERMINATED))
    # nohup means that a hangup ends nothing
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, partial(_end, exit_codes.HANGUP))
    try:
        return _finish_output(work())
    except SystemExit as end:  # argparse leaves so
        return _finish_output(end.code if isinstance(end.code, int) else exit_codes.INTERNAL)
    except _TerminatedError as end:
        return end.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader has had enough: no reason to complain
        return exit_codes.OK
    except Exception as error:
        if isinstance(error, OSError):
            # if it was stdout that failed, what is left in its buffer would fail again
            _drop_output()
        return refuse(error)


def obey(options: argparse.Namespace) -> int:
    """Load the settings and do what the command line asks for.

    Raises:
        Refusal: an option or a setting is wrong.
        EngineError: the model cannot be used.
    """
    settings = arguments.apply(options, load_settings())
    if options.command == "chat":
        return _chat(options, settings)
    module = import_module(_ELSEWHERE.get(options.command, f"app.cli.{options.command}"))
    if options.command == "run" and options.is_served:
        options.model = _served(options, settings)
    elif options.command == "run" and options.model is None:
        why = "the following arguments are required: MODEL (or --server URL; see jalopy run --help)"
        raise Refusal(f"jalopy run: {why}")
    elif getattr(options, "model", None) == "":
        raise Refusal(
            f"jalopy {options.command}: the model's path is empty (name a GGUF file, or: starter)"
        )
    elif getattr(options, "model", None) is not None:
        from app.models.library.find_by_name import named_model

        options.model = str(named_model(options.model, settings.model_directories))
    given = {
        **vars(options),
        "threads": settings.threads,
        "weights": settings.weights_or_default,
        "settings": settings,
    }
    carry_out = getattr(module, options.command)
    kind = getattr(module, f"{options.command.capitalize()}Options", None)
    if kind is not None:
        given["options"] = kind(**{one.name: given[one.name] for one in fields(kind)})
    code: int = carry_out(
        **{name: given[name] for name in signature(carry_out).parameters if name in given}
    )
    if code == exit_codes.OK and options.command in _OPENING and isinstance(options.model, str):
        from app.models.library.choose_model import remember_listed

        remember_listed(options.model)
    return code


def wants_screen(options: argparse.Namespace) -> bool:
    """Whether this is a chat on a terminal that can show one."""
    if options.command != "chat" or options.plain:
        return False
    streams = (sys.stdin, sys.stdout)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return is_terminal and os.environ.get("TERM", "") not in ("", "dumb")


def _start(argv: Sequence[str]) -> int:
    options = arguments.parse(argv)
    limit = address_space.limit_bytes()
    if limit is not None and limit < address_space.LEAST_BYTES:
        raise Refusal(f"jalopy: {address_space.blame(limit)}", exit_codes.NO_MEMORY)
    # Nothing here multiplies matrices by numpy, whose OpenBLAS would start threads and take memory
    # for them at import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return supervise(partial(guard, partial(obey, options)), uses_screen=wants_screen(options))


def _chat(options: argparse.Namespace, settings: Settings) -> int:
    from app.models.library.choose_model import choose_model

    if wants_screen(options):
        return _chat_on_screen(options, settings)
    model = _served(options, settings) or choose_model(options.model, settings)
    if model is None:
        raise Refusal(
            "jalopy: no model is given (jalopy chat MODEL --plain, where MODEL is a GGUF file)"
        )
    if sys.stdin is None or not sys.stdin.isatty():
        # A script that says the same again expects the same; one that wants to go on uses jalopy
        # run --session.
        settings = override(settings, "resume", "new", "--new")
    from app.cli.interrupts import told_apart
    from app.cli.line_mode import chat

    with told_apart():
        return chat(model, settings)


def _chat_on_screen(options: argparse.Namespace, settings: Settings) -> int:
    from app.program import garbage

    garbage.postpone()  # until the first frame; the application settles it
    from app.backend.local.opening import glance_at_model
    from app.machine.sensors.low_power import prepare_environment
    from app.models.library.choose_model import choose_model
    from app.text.glyphs import choose_console

    served = _served(options, settings)
    if served is None:
        path = choose_model(options.model, settings, glance_at_model)
    else:
        path = None
    if options.tty:
        choose_console()
    prepare_environment(settings.low_power)  # Textual reads it when it is imported
    from app.tui.start import run_tui

    return run_tui(settings, served or (Path(path) if path else None))


def _served(options: argparse.Namespace, settings: Settings) -> RemoteModel | None:
    """Return the model of the server that computes, if one does."""
    if options.is_served:
        return RemoteModel(server_address(settings.server), options.served_name or "")
    return None


def _end(exit_code: int, _number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind once: a second signal would interrupt the saving that the first one led to."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise _TerminatedError(exit_code)


def _finish_output(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        return refuse(error)
    return code


def _drop_output() -> None:
    """Point stdout to nowhere, so that the interpreter's last flush finds no one to complain to."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)

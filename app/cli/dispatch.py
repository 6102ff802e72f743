"""The program's entry point: parse arguments, load settings, run a command, return an exit code.

An error before the first screen is one line on stderr. A command is imported when it is called, so
that ``--help`` loads neither numba nor Textual.
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
from app.machine.priority import is_low, lower_priority
from app.program import exit_codes, notices
from app.program.refusals import Refusal, refuse, say
from app.program.remote_model import RemoteModel, server_address
from app.program.screen_size import ignore_impossible_sizes
from app.program.settings import Settings, load_settings, override
from engine.machine import address_space

_REMEMBERING = ("run", "read", "bench", "tune")
"""Commands that add the folder of the model they open to the list of models."""
_NEIGHBOURLY = ("chat", "run", "read", "serve")
"""Commands that the setting ``priority`` is for; a measurement always has normal priority."""
_MODULES = {
    "compare": "app.cli.compare.command",
    "inspect": "app.models.library.inspect",
    "report": "app.models.library.report_card",
    "serve": "app.server.command",
}
"""Modules of the commands that are not in ``app.cli``.

The module of a command has a function with the command's name. The function receives the arguments
that it names: options of the command line, ``threads``, ``weights``, ``settings``, and ``options``,
an instance of the module's class ``NameOptions``.
"""


class _TerminatedError(BaseException):
    """Raised when SIGTERM or SIGHUP arrives."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")  # a character outside the locale is no error
    ignore_impossible_sizes(os.environ)
    if sys.stdout is None:
        say("jalopy: standard output is closed (open it, or redirect it to a file)")
        return exit_codes.USAGE
    return guard(partial(_start, sys.argv[1:] if argv is None else argv))


def guard(work: Callable[[], int]) -> int:
    """Do the work and return its exit code; an exception becomes one line on stderr.

    Notices about repaired files are printed as well.
    """
    code = _guarded(work)
    for line in notices.take_all():
        say(f"jalopy: {line}")
    return code


def _guarded(work: Callable[[], int]) -> int:
    signal.signal(signal.SIGTERM, partial(_end, exit_codes.TERMINATED))
    # nohup ignores hangups, and so does Jalopy then.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, partial(_end, exit_codes.HANGUP))
    try:
        return _finish_output(work())
    except SystemExit as end:  # raised by argparse
        return _finish_output(end.code if isinstance(end.code, int) else exit_codes.INTERNAL)
    except _TerminatedError as end:
        return end.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader closed the pipe, which is no error
        return exit_codes.OK
    except Exception as error:
        if isinstance(error, OSError):
            # If stdout failed, flushing its buffer would fail again.
            _drop_output()
        return refuse(error)


def run_command(options: argparse.Namespace) -> int:
    """Load the settings and run the command.

    Raises:
        Refusal: an option or a setting is invalid.
        EngineError: the model cannot be used.
    """
    settings = arguments.apply(options, load_settings())
    if options.command in _NEIGHBOURLY and is_low(settings.priority, options.command):
        lower_priority()
    if options.command == "chat":
        return _chat(options, settings)
    module = import_module(_MODULES.get(options.command, f"app.cli.{options.command}"))
    if options.command == "run" and options.is_served:
        options.model = _remote_model(options, settings)
    elif options.command == "run" and options.model is None:
        raise Refusal(
            "jalopy run: the following arguments are required: MODEL "
            "(or --server URL; see jalopy run --help)"
        )
    elif getattr(options, "model", None) == "":
        raise Refusal(
            f"jalopy {options.command}: the model's name is empty (name a GGUF file, or starter)"
        )
    elif getattr(options, "model", None) is not None:
        from app.models.library.find_by_name import named_model

        options.model = str(named_model(options.model, settings.model_directories))
    arguments_by_name = {
        **vars(options),
        "threads": settings.threads,
        "weights": settings.weights_or_default,
        "settings": settings,
    }
    command = getattr(module, options.command)
    options_class = getattr(module, f"{options.command.capitalize()}Options", None)
    if options_class is not None:
        names = [field.name for field in fields(options_class)]
        arguments_by_name["options"] = options_class(
            **{name: arguments_by_name[name] for name in names}
        )
    names = [name for name in signature(command).parameters if name in arguments_by_name]
    code: int = command(**{name: arguments_by_name[name] for name in names})

    if code == exit_codes.OK and options.command in _REMEMBERING and isinstance(options.model, str):
        from app.models.library.choose_model import remember_listed

        remember_listed(options.model)
    return code


def wants_screen(options: argparse.Namespace) -> bool:
    """Whether the command is a chat on a terminal that can show a screen."""
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
    # Jalopy does not use NumPy's OpenBLAS, which would start threads when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return supervise(
        partial(guard, partial(run_command, options)), uses_screen=wants_screen(options)
    )


def _chat(options: argparse.Namespace, settings: Settings) -> int:
    from app.models.library.choose_model import choose_model

    if wants_screen(options):
        return _chat_on_screen(options, settings)
    model = _remote_model(options, settings) or choose_model(options.model, settings)
    if model is None:
        raise Refusal("jalopy: no model to open (name a GGUF file: jalopy chat MODEL --plain)")
    if sys.stdin is None or not sys.stdin.isatty():
        # The same input shall give the same output; jalopy run --session continues conversations.
        settings = override(settings, "resume", "new", "--new")
    from app.cli.interrupts import foreign_sigint_exits
    from app.cli.line_mode import chat

    with foreign_sigint_exits():
        return chat(model, settings)


def _chat_on_screen(options: argparse.Namespace, settings: Settings) -> int:
    from app.program import garbage

    garbage.postpone()  # until the first frame
    from app.backend.local.engine_access import glance_at_model
    from app.machine.sensors.low_power import prepare_environment
    from app.models.library.choose_model import choose_model
    from app.text.glyphs import choose_console

    remote_model = _remote_model(options, settings)
    if remote_model is None:
        path = choose_model(options.model, settings, glance_at_model)
    else:
        path = None
    if options.tty:
        choose_console()
    prepare_environment(settings.low_power)  # Textual reads the environment at import
    from app.tui.start import run_tui

    model = remote_model or (Path(path) if path else None)
    return run_tui(settings, model, options.persona or "")


def _remote_model(options: argparse.Namespace, settings: Settings) -> RemoteModel | None:
    """Return the server's model; None if the model is a local file."""
    if options.is_served:
        return RemoteModel(server_address(settings.server), options.served_name or "")
    return None


def _end(exit_code: int, _number: int, _frame: FrameType | None) -> NoReturn:
    """Raise an exception once; a second signal would interrupt saving."""
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
    """Redirect stdout to the null device, so that the flush at exit cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)

"""The command line: argparse to a plain namespace, and which option stands for which setting. Imports nothing heavy."""

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from app.program import exit_codes, paths
from app.program.personas import load_persona, read_system_file
from app.program.refusals import Refusal, say
from app.program.settings import MOST_THREADS, Settings, override
from engine import KV_TYPES

SERVER_VARIABLE = "JALOPY_SERVER"
COMMANDS = (
    "run",
    "chat",
    "read",
    "bench",
    "tune",
    "models",
    "pull",
    "inspect",
    "verify",
    "doctor",
    "compare",
    "sessions",
    "states",
    "serve",
    "report",
    "completion",
    "help",
)

_OVERVIEW = """\
commands:
  jalopy [MODEL]                 chat in the terminal
  jalopy chat [MODEL] --plain    chat line by line: pipes, screen readers
  jalopy run MODEL "TEXT"        one answer on standard output; standard input goes with it
  jalopy read MODEL FILE...      read documents ahead: a later chat about them begins at once
  jalopy bench MODEL             check and measure
  jalopy tune MODEL              find the best threads, and how to keep weights and KV cache
  jalopy models [WORDS]          what lies on this machine, what fits, how fast
  jalopy pull OWNER/REPO         download a model, checked
  jalopy inspect MODEL           show what a model file holds
  jalopy verify MODEL            is the file whole, does it write sense
  jalopy compare MODEL           against an installed llama-cpp-python
  jalopy sessions [WORDS]        the saved conversations; jalopy sessions import FILE takes others over
  jalopy states [prune]          what was read once and is kept for the next time
  jalopy serve [MODEL]           an API for other programs, as OpenAI's
  jalopy doctor [MODEL]          what this machine does for speed, and what fits
  jalopy report [MODEL]          a card with machine, model and speeds, to show to others
  jalopy completion SHELL        words for bash, zsh or fish to complete
  jalopy help [TOPIC]            the manual

MODEL is a GGUF file, or `starter`, the small model that comes with Jalopy. Without it the chat opens the model of your
settings, else the last one used, else starter. With --server URL a bigger machine computes (jalopy help server).
`jalopy COMMAND --help` lists a command's options. A model file that is named like a command: ./run
"""

_SETTING_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "server": (("--server",), {"metavar": "URL", "help": "have a server compute (jalopy help server)"}),
    "threads": (("-t", "--threads"), {"type": int, "metavar": "N", "help": "threads that write; 0 = automatic"}),
    "prefill_threads": (("--prefill-threads",), {"type": int, "metavar": "N", "help": "threads that read the prompt"}),
    "pin_threads": (("--pin",), {"metavar": "WHEN", "help": "bind threads to CPUs: auto (as tuned), on or off"}),
    "context_size": (("--ctx",), {"type": int, "metavar": "N", "help": "context in tokens; 0 = automatic"}),
    "kv_type": (("--kv",), {"metavar": "TYPE", "help": f"KV cache: {', '.join(KV_TYPES)} or auto (as tuned)"}),
    "weights": (("--weights",), {"metavar": "MODE", "help": "weights in memory: mmap, huge or auto (as tuned)"}),
    "system_prompt": (("--system",), {"metavar": "TEXT", "help": "system prompt"}),
    "thinking": (("--think",), {"metavar": "HOW", "help": "auto, on, off, low, medium, high, or a number of tokens"}),
    "sampling.max_tokens": (("-n", "--max-tokens"), {"type": int, "metavar": "N", "help": "longest answer in tokens"}),
    "sampling.temperature": (("--temp",), {"type": float, "metavar": "X", "help": "0 = always the likeliest token"}),
    "sampling.top_k": (("--top-k",), {"type": int, "metavar": "N", "help": "choose among the N likeliest"}),
    "sampling.top_p": (("--top-p",), {"type": float, "metavar": "X", "help": "choose among this much probability"}),
    "sampling.min_p": (("--min-p",), {"type": float, "metavar": "X", "help": "leave out what is less likely"}),
    "sampling.repeat_penalty": (("--repeat-penalty",), {"type": float, "metavar": "X", "help": "1 = none"}),
    "sampling.seed": (("--seed",), {"type": int, "metavar": "N", "help": "same seed, same text; -1 = random"}),
    "theme": (("--theme",), {"metavar": "NAME", "help": "colours"}),
    "low_power": (("--low-power",), {"metavar": "WHEN", "help": "fewer redraws: auto, on or off"}),
}
_SYSTEM_WAYS = {"--system": "system_prompt", "--persona": "persona", "--system-file": "system_file"}
_ENGINE_KEYS = ("prefill_threads", "pin_threads", "context_size", "kv_type", "weights")
_SAMPLING_KEYS = ("system_prompt", "thinking", *(key for key in _SETTING_OPTIONS if key.startswith("sampling.")))


class _Parser(argparse.ArgumentParser):
    """Refuses in one line instead of two with the whole usage; its help names the settings file."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message} (see {self.prog} --help)")
        raise SystemExit(exit_codes.USAGE)

    def print_help(self, file: Any = None) -> None:
        # argparse's own hides that the output could not be written.
        (file or sys.stdout).write(self.format_help())

    def format_help(self) -> str:
        from app.program.paths import config_file

        return f"{super().format_help()}\nYour settings file: {config_file() or 'no place for it on this machine'}\n"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; ``command`` says what to do.

    Raises:
        SystemExit: after --help or --version, or with one line on stderr.
    """
    if argv and argv[0] in COMMANDS:
        command, rest = argv[0], argv[1:]
    else:
        _refuse_mistyped(argv)
        command, rest = "chat", argv
    is_bare = not argv or argv[0] not in COMMANDS
    parser = _BUILDERS[command](None if is_bare else command)
    options = parser.parse_args(rest)
    options.command = command
    return options


def options_of(command: str | None) -> list[str]:
    """Return the options of a command, or of the bare chat."""
    parser = _BUILDERS[command or "chat"](command)
    return [flag for action in parser._actions for flag in action.option_strings]


def _refuse_mistyped(argv: Sequence[str]) -> None:
    """Say which command a word means that is neither a command nor a file."""
    word = argv[0] if argv else ""
    if not word.isalpha() or word == "starter" or os.path.exists(word):
        return
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    if near:
        say(f"jalopy: {word}: neither a command nor a file (did you mean jalopy {near[0]}?)")
        raise SystemExit(exit_codes.USAGE)


def apply(options: argparse.Namespace, settings: Settings) -> Settings:
    """Lay the options that were given over the settings.

    Raises:
        SettingsError: an option has a value that is not allowed.
        Refusal: there is no such persona or file.
    """
    for key, (flags, _) in _SETTING_OPTIONS.items():
        value = getattr(options, key, None)
        if value is not None:
            settings = override(settings, key, value, f"{flags[-1]}: the value")
    if hasattr(options, "served_name"):
        settings = _choose_server(options, settings)
    # A saved conversation has a system prompt of its own: whoever names one wants another conversation.
    names_system = any(getattr(options, name, None) is not None for name in _SYSTEM_WAYS.values())
    if getattr(options, "new", False) or names_system:
        settings = override(settings, "resume", "new", "--new")
    return _apply_system_prompt(options, settings)


def _choose_server(options: argparse.Namespace, settings: Settings) -> Settings:
    """Let a server compute, of the command line, the environment or the settings, unless a file is named."""
    if options.server is not None:
        if options.command == "run" and options.model is not None:
            options.words, options.model = [options.model, *options.words], None  # no file: words of the prompt
        elif options.model:
            raise Refusal("jalopy: a server computes no file of yours (--model NAME names a model of the server)")
    elif os.environ.get(SERVER_VARIABLE):
        settings = override(settings, "server", os.environ[SERVER_VARIABLE], SERVER_VARIABLE)
    if options.served_name is not None and not settings.server:
        raise Refusal("jalopy: --model names a model of a server (give --server URL; a file is named without --model)")
    options.is_served = bool(settings.server) and not options.model
    return settings


def _apply_system_prompt(options: argparse.Namespace, settings: Settings) -> Settings:
    """Take the system prompt from the persona or the file that was named."""
    given = [flag for flag, name in _SYSTEM_WAYS.items() if getattr(options, name, None) is not None]
    if len(given) > 1:
        raise Refusal(f"jalopy: {' and '.join(given)} both give a system prompt (choose one)")
    if given == ["--persona"]:
        persona = load_persona(options.persona)
        for name, value in persona.parameters.items():
            if getattr(options, key := f"sampling.{name}", None) is None:  # else the command line says otherwise
                settings = override(settings, key, value, f"--persona {options.persona}: {name}")
        return override(settings, "system_prompt", persona.system, "--persona")
    if given == ["--system-file"]:
        text = read_system_file(paths.expanded(options.system_file))
        return override(settings, "system_prompt", text, "--system-file")
    return settings


def _chat_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Chat with a language model on the computer you already own.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file")
    _add_server(parser)
    parser.add_argument("--plain", action="store_true", help="line by line, without a screen")
    parser.add_argument("--new", action="store_true", help="begin a new conversation instead of resuming the last")
    parser.add_argument("--tty", action="store_true", help="draw for a plain console: ASCII borders, 16 colours")
    if command is None:
        parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and leave")
        parser.epilog = _OVERVIEW
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_settings(parser, "threads", *_ENGINE_KEYS, *_SAMPLING_KEYS, "theme", "low_power")
    _add_system_sources(parser)
    return parser


def _run_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Answer one prompt: the answer on standard output, the figures on standard error.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file; none with --server")
    parser.add_argument("words", nargs="*", metavar="TEXT", help="the prompt; what comes through a pipe goes with it")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the same; - reads standard input alone")
    _add_server(parser)
    parser.add_argument("--session", metavar="NAME", help="go on with a saved conversation, or begin it")
    parser.add_argument("--schema", metavar="FILE", help="the answer is JSON by this schema")
    parser.add_argument("--grammar", metavar="FILE", help="the answer follows this grammar (GBNF or Lark)")
    parser.add_argument("--regex", metavar="TEXT", help="the answer matches this regular expression")
    parser.add_argument("--raw", action="store_true", help="continue the text as it stands, without chat template")
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="one JSON object with text and figures, at the end"
    )
    _add_settings(parser, "threads", *_ENGINE_KEYS, *_SAMPLING_KEYS)
    _add_system_sources(parser)
    return parser


def _read_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Read documents ahead, overnight for instance: a chat about them begins at once.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, folders or patterns, as of /read")
    _add_settings(parser, "threads", *_ENGINE_KEYS, "system_prompt")
    _add_system_sources(parser)
    return parser


def _completion_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(
        command, 'Print a script that completes commands, options and model files: eval "$(jalopy completion bash)".'
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads it")
    return parser


def _report_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Print a card with machine, model and speeds; nothing on it is private.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file")
    parser.add_argument("--out", default="", metavar="FILE", help="write it there: as a picture if it ends in .svg")
    return parser


def _help_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Show what the manual says on a topic, or which topics there are.")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="such as threads or thinking")
    return parser


def _bench_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Check that the model is computed rightly here, then measure reading and writing.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "-t", "--threads", dest="thread_counts", type=_counts, default=(), metavar="N,N", help="thread counts"
    )
    parser.add_argument("-p", "--n-prompt", type=_count, default=128, metavar="N", help="tokens to read (128)")
    parser.add_argument("-n", "--n-gen", type=_count, default=32, metavar="N", help="tokens to write (32)")
    parser.add_argument("-r", "--rounds", type=_count, default=3, metavar="N", help="rounds that count (3)")
    _add_json(parser, "one JSON object per thread count")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, phase by phase")
    parser.add_argument("--text", default="", metavar="FILE", help="write the end of a text: what guesses bring")
    _add_settings(parser, "weights", "kv_type")
    return parser


def _compare_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Measure this engine and an installed llama-cpp-python on the same file, in turn.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("-p", "--n-prompt", type=_count, default=128, metavar="N", help="tokens to read (128)")
    parser.add_argument("-n", "--n-gen", type=_count, default=32, metavar="N", help="tokens to write (32)")
    parser.add_argument("-r", "--rounds", type=_count, default=3, metavar="N", help="rounds of both (3)")
    parser.add_argument("--peer-python", default="", metavar="PATH", help="the Python that has llama-cpp-python")
    _add_json(parser)
    _add_settings(parser, "threads", "weights")
    return parser


def _tune_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(
        command,
        "Measure which number of threads is best here, for writing and for reading the prompt; and remember it.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("--try-weights", action="store_true", help="compare the file's map with huge pages, too")
    parser.add_argument("--try-kv", action="store_true", help="compare types of the KV cache in a filled context, too")
    parser.add_argument(
        "--kernels", dest="only_kernels", action="store_true", help="only how kernels ask memory ahead, per weight type"
    )
    parser.add_argument(
        "--seconds",
        dest="budget_s",
        type=_seconds,
        metavar="N",
        help="take no longer than this (60; 45 more for weights, 60 for KV)",
    )
    parser.add_argument(
        "--context",
        dest="n_context",
        type=_count,
        default=64,
        metavar="N",
        help="tokens of the conversation before (64)",
    )
    parser.add_argument("--dry-run", dest="remember", action="store_false", help="measure, but remember nothing")
    _add_json(parser, "one JSON object, at the end")
    _add_settings(parser, "weights", "kv_type", "pin_threads")
    return parser


def _models_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "List the models on this machine: what fits, and how fast it would be.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only models with all these words in their row")
    parser.add_argument("--measure", action="store_true", help="measure this machine anew")
    _add_json(parser)
    _add_settings(parser, "threads", "prefill_threads", "kv_type", "weights")
    return parser


def _sessions_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "List the saved conversations, the last one used first; or import some.")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="only those in whose title or text all of them stand; import FILE ... takes over conversations of Jalopy,"
        " ChatGPT, llama-server, or lists of messages",
    )
    _add_json(parser)
    return parser


def _states_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "List the saved states of the KV cache, or delete those used longest ago.")
    parser.add_argument(
        "action",
        nargs="?",
        default="",
        choices=("", "prune"),
        metavar="prune",
        help="delete: without an option to the quota",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--older", type=_days, metavar="DAYS", help="prune: what was not used for so long")
    how.add_argument("--to", type=_size, metavar="SIZE", help="prune: down to this size (500M, 2G)")
    how.add_argument("--all", action="store_true", help="prune: everything")
    _add_json(parser)
    return parser


def _inspect_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Check a model file and show what it holds.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("--tensors", action="store_true", help="list the tensors")
    parser.add_argument("--plan", action="store_true", help="list the operations of the plan")
    parser.add_argument("--template", action="store_true", help="show the chat template whole")
    _add_json(parser)
    _add_settings(parser, "threads", "prefill_threads", "weights")
    return parser


def _pull_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Download a model and check it. Shows size, free disk and memory before it starts.")
    parser.add_argument("what", metavar="WHAT", help="OWNER/REPO, OWNER/REPO:Q4_K_M, or a file's address")
    parser.add_argument(
        "--to", dest="directory", default="", metavar="DIR", help="where it goes (the first of model_directories)"
    )
    parser.add_argument("--sha256", default="", metavar="HEX", help="the hash that the file must have")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be downloaded")
    parser.add_argument("--anyway", action="store_true", help="also what is not supported or does not fit")
    return parser


def _verify_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Check a model: its hash, that its weights are numbers, and that it writes.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("--sha256", default="", metavar="HEX", help="the hash that the file must have")
    parser.add_argument("--no-run", dest="runs", action="store_false", help="look at the file only")
    _add_json(parser, "one JSON object, at the end")
    _add_settings(parser, "threads", "prefill_threads")
    return parser


def _doctor_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Say what this machine, this terminal and a model mean for speed, and what mends it.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file: will it fit, and how fast")
    parser.add_argument("--size", metavar="8B", help="instead of a file: the number of parameters")
    parser.add_argument("--type", dest="quantization", metavar="T", help="type of that size (Q4_K_M)")
    _add_json(parser)
    _add_settings(parser, "threads", "prefill_threads", "context_size", "kv_type")
    return parser


def _serve_parser(command: str | None) -> argparse.ArgumentParser:
    parser = _new_parser(command, "Answer other programs by an API that OpenAI's clients know (jalopy help serve).")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address; all but this machine's need a key"
    )
    parser.add_argument("--port", type=_port, default=8080, metavar="N", help="port (8080); 0 = any that is free")
    parser.add_argument("--alias", type=_alias, default="", metavar="NAME", help="the model's name for clients")
    parser.add_argument(
        "--api-key-file", default="", metavar="FILE", help="holds the key that requests must bring (or JALOPY_API_KEY)"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further name by which it may be called"
    )
    parser.add_argument(
        "--max-waiting", dest="most_waiting", type=_count, default=16, metavar="N", help="requests that may wait (16)"
    )
    _add_settings(parser, "threads", *_ENGINE_KEYS, *(key for key in _SAMPLING_KEYS if key != "system_prompt"))
    return parser


_BUILDERS = {
    "chat": _chat_parser,
    "run": _run_parser,
    "read": _read_parser,
    "bench": _bench_parser,
    "tune": _tune_parser,
    "models": _models_parser,
    "inspect": _inspect_parser,
    "verify": _verify_parser,
    "pull": _pull_parser,
    "doctor": _doctor_parser,
    "compare": _compare_parser,
    "sessions": _sessions_parser,
    "states": _states_parser,
    "serve": _serve_parser,
    "report": _report_parser,
    "completion": _completion_parser,
    "help": _help_parser,
}


def _new_parser(command: str | None, description: str) -> argparse.ArgumentParser:
    prog = f"jalopy {command}" if command else "jalopy"
    return _Parser(prog=prog, description=description, allow_abbrev=False)


def _add_settings(parser: argparse.ArgumentParser, *keys: str) -> None:
    for key in keys:
        flags, options = _SETTING_OPTIONS[key]
        parser.add_argument(*flags, dest=key, default=None, **options)


def _add_server(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser, "server")
    parser.add_argument("--model", dest="served_name", metavar="NAME", help="a model of the server; else its first")


def _add_json(parser: argparse.ArgumentParser, what: str = "one JSON object") -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


def _add_system_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--persona", metavar="NAME", help="system prompt from a file of your personas directory")
    parser.add_argument("--system-file", metavar="FILE", help="system prompt from a file")


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from app.program.version import installed_version

        print(f"jalopy {installed_version()}")
        raise SystemExit(exit_codes.OK)


def _whole_number(text: str) -> int:
    """Return the number; 0, which nothing here allows, where it is none."""
    try:
        return int(text)
    except ValueError:
        return 0


def _count(text: str) -> int:
    value = _whole_number(text)
    if not 1 <= value <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1 to {1 << 20}")
    return value


def _days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 36500:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of days, 0 to 36500")
    return value


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: must be a size, such as 500M or 2G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _port(text: str) -> int:
    value = _whole_number(text) if text != "0" else 0
    if not (1 <= value <= 65535 or text == "0"):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 0 to 65535")
    return value


def _alias(text: str) -> str:
    if not (len(text) <= 100 and text.isprintable()):
        raise argparse.ArgumentTypeError("must be at most 100 printable characters")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # is within no limits
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be from 1 to 3600 seconds")
    return value


def _counts(text: str) -> list[int]:
    counts = [_whole_number(one) for one in text.split(",")]
    if not all(1 <= one <= MOST_THREADS for one in counts):
        raise argparse.ArgumentTypeError(f"{text}: thread counts are whole numbers from 1 to {MOST_THREADS}")
    return counts

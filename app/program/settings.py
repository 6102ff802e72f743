"""Typed settings: built-in ``config/default.toml`` < the user's file < the command line.

Each value is checked where it enters, so that the rest of the program may trust it.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.remote_model import is_address, server_address
from app.program.samplers import MAX_COUNT, SamplingSettings
from app.program.small_file import is_present, parse_toml, read_toml
from app.text.record import record
from engine import KV_TYPES
from engine.prompt.thinking_mode import MOST_BUDGET_TOKENS, ThinkingMode

MOST_THREADS = 128
"""``engine.plan.crew.MOST_THREADS``, which is dear to import; a test compares them."""
_MOST_SHOWN = 10**40
_TOOL_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER = re.compile(r"[ -~]{0,4096}")
_TEXT = re.compile(r"[^\0]*")
_ENVIRONMENT_NAME = re.compile(r"[^=\0]+")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,99})?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[a-z0-9_.\[\]:-]{1,200}", re.IGNORECASE)
AUTO = "auto"
"""Leaves a choice to the program."""
THINKING_WORDS = "auto, on, off, low, medium, high, or the most tokens of a thought"
OFFER = "offer"
NEW = "new"
"""What a start does with the last conversation."""
DEFAULT_WEIGHTS = "mmap"
DEFAULT_KV_TYPE = "f16"
"""Format of the KV cache before anything was measured."""


class Source(str, Enum):
    """Where the value of a setting comes from."""

    DEFAULT = "default"
    FILE = "your file"
    COMMAND_LINE = "command line"
    MODEL = "model's file"
    """It recommends the value."""
    MAKER = "model's maker"
    """Their table in ``config`` does."""
    CHOSEN = "/set"


class SettingsError(Refusal):
    """A setting is unknown or has a value that is not allowed; the message names file, key and what
    is."""


def _setting(
    kind: str = "",
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A setting and its rules; kinds of their own: paths, thinking, server, origins, tool
    servers."""
    return field(metadata={"kind": kind, "choices": choices, "least": least, "most": most})


MOST_TIMEOUT_S = 24 * 3600


@record
class ToolServerSetting:
    """A server that has tools for the model, by the Model Context Protocol: a program of the
    user's, or an address."""

    name: str
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    url: str = ""
    """In place of a command."""
    headers: tuple[tuple[str, str], ...] = ()
    """That go with each request to the address."""
    key_variable: str = ""
    """Of the environment: holds the key for the address."""
    always: tuple[str, ...] = ()
    """Names of tools that run without a question."""
    timeout_s: float = 60.0
    """Seconds that it may be silent before its start, or a call, is given up."""


@record
class ToolSettings:
    """Tools that a model may ask for in the chat."""

    use: str = _setting(choices=("on", "off"))
    """Tell models of the tools from the first message on."""
    result_tokens: int = _setting(least=16, most=MAX_COUNT)
    """Longest part of the results that a model gets of one round of calls."""
    servers: tuple[ToolServerSetting, ...] = _setting("tool servers")
    """Servers that have the tools."""


@record
class ServeSettings:
    """What ``jalopy serve`` allows."""

    origins: tuple[str, ...] = _setting("origins")
    """Pages in browsers that may use it, each by its origin; none = no page may."""


@record
class Settings:
    """Every setting, named as in the settings file."""

    model: str = _setting()
    """The model that opens when the command line names none; "" = the last one used."""
    server: str = _setting("server")
    """Address of an API that computes models in place of this program; "" = none."""
    model_directories: tuple[str, ...] = _setting("paths")
    """Directories that are searched for models, as are those of other programs; downloads go into
    the first."""
    context_size: int = _setting(least=0, most=MAX_COUNT)
    """Tokens the conversation may hold; 0 = as many as the model and the free memory allow."""
    rope_scaling: str = _setting(choices=("file", "yarn"))
    """Positions beyond the trained context: as the model's file has them, or stretched by YaRN."""
    kv_type: str = _setting(choices=(AUTO, *KV_TYPES))
    """Number format of the KV cache, or of keys/values; "auto" = f16, a smaller one only where
    memory is short."""
    checkpoints_mb: int = _setting(least=0, most=MAX_COUNT)
    """Megabytes for places to go back to in a conversation, with models that have recurrent layers;
    0 = none."""
    system_prompt: str = _setting()
    """System prompt of every new conversation; "" = none."""
    thinking: str = _setting("thinking")
    """How much a model thinks before it answers: on, off, low, medium, high, or a number of tokens;
    "auto" = as chosen for the model with /think, else as the model does by itself."""
    loop_guard: str = _setting(choices=("on", "off"))
    """End an answer that repeats itself without end, and keep one copy of what it repeats."""
    notify: str = _setting(choices=("on", "off"))
    """Tell by bell and desktop notification that a long answer is done, where the terminal has not
    the focus."""
    threads: int = _setting(least=0, most=MOST_THREADS)
    """Threads that write the answer; 0 = chosen for this machine."""
    prefill_threads: int = _setting(least=0, most=MOST_THREADS)
    """Threads that read the prompt; 0 = chosen for this machine."""
    pin_threads: str = _setting(choices=("auto", "on", "off"))
    """Bind threads to CPUs; "auto" = where tuning has found it faster."""
    weights: str = _setting(choices=("auto", "mmap", "huge"))
    """How weights come into memory; "auto" = as tuning has found it faster, else in the file's
    map."""
    guess_ahead: str = _setting(choices=("on", "conversation", "off"))
    """Compute what an answer repeats several tokens at a time, from this conversation and earlier
    ones ("on"), or from this one alone; the answer is the same."""
    prefill_while_typing: str = _setting(choices=("auto", "on", "off"))
    """Read what is in the prompt while the user pauses in typing; "auto" = not on battery."""
    search_by_meaning: str = _setting(choices=("on", "off"))
    """Find passages of documents whose words differ from the question's, where an embedding model
    is there."""
    theme: str = _setting()
    """Colours of the interface: the name of a theme; "" = the one chosen last."""
    low_power: str = _setting(choices=("auto", "on", "off"))
    """Fewer redraws and no animation; "auto" = on battery and on machines with one or two cores."""
    prompt_history: str = _setting(choices=("on", "off"))
    """Keep what was sent from the prompt across starts."""
    save_conversations: str = _setting(choices=("on", "off"))
    """Keep conversations on disk."""
    resume: str = _setting(choices=(OFFER, "last", NEW))
    """Conversation at the start: a new one, with the model's last one on Enter ("offer"); the last
    one; a new one."""
    write_titles: str = _setting(choices=("auto", "on", "off"))
    """Have the model write a short title for each conversation while nothing is asked; "auto" = not
    on battery."""
    keep_kv_states: str = _setting(choices=("on", "off"))
    """Keep the state of conversations' KV cache on disk, so that resuming one reads nothing
    again."""
    kv_states_quota_gb: float = _setting(least=0.01, most=10_000)
    """Limit on all these states together; the oldest go first."""
    sampling: SamplingSettings = field(kw_only=True)
    """How the next token is chosen, and how many."""
    tools: ToolSettings = field(kw_only=True)
    """Tools that a model may ask for in the chat."""
    serve: ServeSettings = field(kw_only=True)
    """What ``jalopy serve`` allows."""
    adapters: tuple[str, ...] = field(default=(), kw_only=True)
    """What ``--lora`` names (``app.session.adapters``); no setting, since an adapter is for one
    model."""
    sources: Mapping[str, Source] = field(default_factory=dict, kw_only=True)
    """Where values come from, by dotted key, that are not the defaults."""

    @property
    def chosen_sampling(self) -> dict[str, Any]:
        """Values of ``sampling`` that the user has set; what is recommended for a model goes before
        the others."""
        return {
            one.name: getattr(self.sampling, one.name)
            for one in fields(self.sampling)
            if f"sampling.{one.name}" in self.sources
        }

    @property
    def kv_states_quota_bytes(self) -> int:
        """Limit on all saved states together; 0 where none are kept."""
        if self.keep_kv_states == "on":
            return int(self.kv_states_quota_gb * (1 << 30))
        return 0

    @property
    def weights_or_default(self) -> str:
        """How weights come into memory where nothing is remembered for the model."""
        if self.weights == AUTO:
            return DEFAULT_WEIGHTS
        return self.weights

    @property
    def kv_type_or_default(self) -> str:
        """The format of the KV cache where nothing is remembered for the model."""
        if self.kv_type == AUTO:
            return DEFAULT_KV_TYPE
        return self.kv_type


@cache
def built_in_settings() -> Settings:
    """Return the defaults of ``config/default.toml``, the only place where they are."""
    path = paths.bundled("config") / "default.toml"
    checked = dict(_checked_values(read_toml(path, "settings file", SettingsError), str(path)))
    for key in _rules():
        if key not in checked:
            raise SettingsError(f"{path}: {key} is missing", exit_codes.BAD_DATA)
    tables: dict[str, dict[str, Any]] = {}
    for key, value in checked.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, {})[name] = value
    inner = {name: table(**tables.pop(name)) for name, table in _TABLES.items()}
    return Settings(**tables[""], **inner)


def load_settings(user_file: Path | None = None) -> Settings:
    """Return the defaults with a file, by default the user's, laid over them.

    Raises SettingsError: it is unsound.
    """
    settings = built_in_settings()
    path = user_file or paths.config_file()
    if path is None or (user_file is None and not is_present(path)):
        return settings
    return merge(settings, read_toml(path, "settings file", SettingsError), str(path))


def settings_of(text: str, source: str) -> Settings:
    """Return the defaults with a settings file's text laid over them.

    Raises SettingsError: as of a file.
    """
    return merge(built_in_settings(), parse_toml(text, source, SettingsError), source)


def merge(settings: Settings, values: Mapping[str, Any], source: str) -> Settings:
    """Lay the values of a TOML table over settings.

    ``values``: as in the settings file; ``sampling`` is a table.
    """
    for key, value in _checked_values(values, source):
        settings = _with_value(settings, key, value, {**settings.sources, key: Source.FILE})
    return settings


def override(settings: Settings, key: str, value: object, source: str) -> Settings:
    """Set one value by its dotted key; ``source``: what the user typed.

    Raises SettingsError: it is not allowed.
    """
    try:
        checked = _checked(key, value, source)
    except SettingsError as error:
        raise SettingsError(str(error), exit_codes.USAGE) from None
    return _with_value(settings, key, checked, {**settings.sources, key: Source.COMMAND_LINE})


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of a dotted key."""
    table, _, name = key.rpartition(".")
    return getattr(getattr(settings, table) if table else settings, name)


def taken_from(settings: Settings, key: str, other: Settings) -> Settings:
    """Return the settings with one value of others, and its source."""
    sources = {name: source for name, source in settings.sources.items() if name != key}
    if key in other.sources:
        sources[key] = other.sources[key]
    return _with_value(settings, key, value_of(other, key), sources)


def _with_value(
    settings: Settings, key: str, value: Any, sources: Mapping[str, Source]
) -> Settings:
    table, _, name = key.rpartition(".")
    changes = {name: value}
    if table:
        changes = {table: replace(getattr(settings, table), **changes)}
    return replace(settings, **changes, sources=sources)


def written(value: object) -> str:
    """Write a value as a user types it: text without quotation marks, a list by its elements."""
    if isinstance(value, tuple):
        return ", ".join(one.name if isinstance(one, ToolServerSetting) else one for one in value)
    return str(value)


def typed_value(settings: Settings, key: str, text: str) -> object:
    """Return the value that a user's text means; whether it is allowed, ``override`` says."""
    wanted = type(value_of(settings, key))
    text = text.strip()
    if wanted is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if wanted is str:
        return text
    return as_number(text)


def as_number(text: str) -> object:
    """Return what a user typed as a number, else as it is, for the line that refuses it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def choices_of(key: str) -> tuple[str, ...]:
    """Return the words among which a setting chooses; none where it is a number, a text or a
    list."""
    choices: tuple[str, ...] = _rules()[key][1]["choices"]
    return choices


def allowed_of(key: str) -> str:
    """Say which values a setting takes."""
    return _allowed(*_rules()[key])


def setting_keys() -> list[str]:
    """Return every dotted key in order, as ``sampling.top_k``."""
    return list(_rules())


_TABLES: dict[str, Any] = {
    "sampling": SamplingSettings,
    "tools": ToolSettings,
    "serve": ServeSettings,
}


@cache
def _rules() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return the type of each setting, and what ``_setting`` says of it, by its dotted key."""
    return {
        prefix + one.name: (get_type_hints(table)[one.name], one.metadata)
        for prefix, table in (
            ("", Settings),
            *((f"{name}.", table) for name, table in _TABLES.items()),
        )
        for one in fields(table)
        if one.metadata
    }


def _checked_values(values: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a TOML table by their dotted keys."""
    for name, value in values.items():
        if name == "server" and isinstance(value, Mapping):  # the table's name in other words
            name = "serve"
        if name in _TABLES and not isinstance(value, Mapping):
            raise SettingsError(
                f"{source}: {name} is {_kind(value)}; it must be a table: [{name}]",
                exit_codes.BAD_DATA,
            )
        if name in _TABLES:
            inner = {f"{name}.{key}": one for key, one in value.items()}
        else:
            inner = {name: value}
        for key, one in inner.items():
            if key not in _rules() or "." in name:
                raise SettingsError(
                    f"{source}: {key} is not a setting{_nearest(key)}", exit_codes.BAD_DATA
                )
            yield key, _checked(key, one, f"{source}: {key}")


def _nearest(dotted: str) -> str:
    keys = setting_keys()
    name = dotted.rpartition(".")[2]
    for key in keys:
        if key.rpartition(".")[2] == name:
            if "." in key:
                return f" (it belongs into its table: {key})"
            return f" (it belongs to the top: {key})"
    near = difflib.get_close_matches(dotted, keys, n=1, cutoff=0.5)
    short_names = {key.rpartition(".")[2]: key for key in keys}
    near = near or [
        short_names[n] for n in difflib.get_close_matches(name, short_names, n=1, cutoff=0.5)
    ]
    if near:
        return f" (nearest: {near[0]})"
    return f" (known: {', '.join(keys)})"


def _checked(key: str, value: object, where: str) -> Any:
    """Return the value in the setting's type, or say what is allowed."""
    wanted, rules = _rules()[key]
    kind = rules["kind"]
    choices = rules["choices"]
    least = rules["least"]
    most = rules["most"]
    if kind == "tool servers":
        return _tool_servers(value, where)
    # TOML writes 1 where 1.0 is meant; an integer of 400 digits has no float.
    if wanted is float and type(value) is int and least <= value <= most:
        value = float(value)
    if (
        wanted == tuple[str, ...]
        and isinstance(value, list)
        and all(isinstance(one, str) for one in value)
    ):
        value = tuple(value)
    if kind == "thinking" and type(value) is int and 0 <= value <= MOST_BUDGET_TOKENS:
        value = str(value)
    is_right = type(value) is (get_origin(wanted) or wanted)
    if is_right and kind in _PARSERS and (value or kind != "server"):  # "" is none
        try:
            _PARSERS[kind](str(value))
        except ValueError:
            is_right = False
    if is_right and choices:
        is_right = value in choices
    if is_right and isinstance(value, (int, float)):
        is_right = least <= value <= most  # NaN is in no range
    if is_right and isinstance(value, (str, tuple)):
        is_right = not any("\0" in one for one in value)
    for one in value if is_right and isinstance(value, tuple) else ():
        if not _ELEMENTS[kind](one):
            raise SettingsError(
                f"{where} has {_kind(one)}; allowed: {_ALLOWED[kind]}", exit_codes.BAD_DATA
            )
    if is_right:
        return value
    raise SettingsError(
        f"{where} is {_kind(value)}; allowed: {_allowed(wanted, rules)}", exit_codes.BAD_DATA
    )


def _tool_servers(value: object, where: str) -> tuple[ToolServerSetting, ...]:
    """Return the servers of tools that a table names."""
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{where} is {_kind(value)}; it must hold tables: [tools.servers.NAME]",
            exit_codes.BAD_DATA,
        )
    return tuple(_tool_server(name, given, f"{where}.{name[:40]}") for name, given in value.items())


def _tool_server(name: str, given: Any, where: str) -> ToolServerSetting:
    if not _TOOL_SERVER_NAME.fullmatch(name):
        raise _wrong_server(f"{where!a} is no name", "1 to 40 letters, digits, _ and -")
    both = {"always", "timeout_s"}
    kinds = ({"command", "environment", *both}, {"url", "headers", "key_variable", *both})
    if isinstance(given, Mapping):
        keys = set(given)
    else:
        keys = set()
    for key in sorted(keys - set(_SERVER_RULES)):
        hint = _OF_OTHERS.get(key, f"known: {', '.join(_SERVER_RULES)}")
        raise SettingsError(
            f"{where} has {key[:40]!a}, which is not known here ({hint})", exit_codes.BAD_DATA
        )
    if not keys & {"command", "url"} or not any(keys <= kind for kind in kinds):
        raise _wrong_server(
            f"{where} is not sound", "a table with command or url, and what goes with it"
        )
    for key, value in given.items():
        is_sound, allowed = _SERVER_RULES[key]
        if not is_sound(value):
            raise _wrong_server(f"{where}.{key} is not sound", allowed)
    return ToolServerSetting(name, **{key: _unchanging(value) for key, value in given.items()})


def _unchanging(value: Any) -> Any:
    """Return a value of a server's table with tuples in place of lists and tables."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(value)
    return value


_OF_OTHERS = {
    "args": 'its place is in command: ["program", "argument"]',
    "env": "it is called environment here",
    "cwd": 'a command may change it: ["sh", "-c", "cd FOLDER && exec PROGRAM"]',
    "http_headers": "it is called headers here",
    "bearer_token_env_var": "it is called key_variable here",
}
"""Names here for keys of other programs' settings."""


def _wrong_server(what: str, allowed: str) -> SettingsError:
    return SettingsError(f"{what}; allowed: {allowed}", exit_codes.BAD_DATA)


def _are_texts(
    found: Any, names: re.Pattern[str] | None = None, texts: re.Pattern[str] = _TEXT
) -> bool:
    """Whether that is a list of texts, or a table of them by such names."""
    if names is not None and not (isinstance(found, Mapping) and all(map(names.fullmatch, found))):
        return False
    if names is not None:
        values = found.values()
    elif isinstance(found, list):
        values = found
    else:
        values = [None]
    return all(isinstance(one, str) and texts.fullmatch(one) for one in values)


_SERVER_RULES: dict[str, tuple[Callable[[Any], object], str]] = {
    "command": (lambda found: _are_texts(found) and found and found[0],
                'a list of texts, the program first: ["program", "argument"]'),
    "environment": (lambda found: _are_texts(found, _ENVIRONMENT_NAME),
                    'a table of texts by names of variables, without =: { NAME = "text" }'),
    "url": (lambda found: isinstance(found, str) and is_address(found),
            "an address of http or https without a password"),
    "headers": (lambda found: _are_texts(found, _HEADER_NAME, _HEADER),
                'names and values of HTTP: { X-Team = "mine" }'),
    "key_variable": (lambda found: isinstance(found, str) and _VARIABLE.fullmatch(found),
                     "the name of a variable of the environment"),
    "always": (_are_texts, 'a list of tools: ["read_file"]'),
    "timeout_s": (lambda found: type(found) in (int, float) and 1 <= found <= MOST_TIMEOUT_S,
                  f"a number of seconds from 1 to {MOST_TIMEOUT_S}"),
}  # fmt: skip
"""What a table of a server may have, and what is said of it where that is not sound."""


_PARSERS: dict[str, Callable[[str], object]] = {
    "thinking": ThinkingMode.parse,
    "server": server_address,
}
_ELEMENTS: dict[str, Callable[[str], object]] = {
    "origins": _ORIGIN.fullmatch,
    # another would be elsewhere at each start
    "paths": lambda one: one.startswith("~") or Path(one).is_absolute(),
}
_ALLOWED = {
    "thinking": THINKING_WORDS,
    "server": "an address of http or https without a password, as https://host:8000/v1",
    "origins": (
        "pages by scheme and host, as https://notes.example or http://localhost:3000; no path, no *"
    ),
    "paths": "whole paths, from / or ~ on",
    "tool servers": "tables in your file: [tools.servers.NAME] with command, or with url",
}


def _allowed(wanted: Any, rules: Mapping[str, Any]) -> str:
    if rules["kind"] in _ALLOWED:
        return _ALLOWED[rules["kind"]]
    if rules["choices"]:
        return ", ".join(f'"{choice}"' for choice in rules["choices"])
    if wanted is str:
        return "text"
    if wanted is int:
        noun = "a whole number"
    else:
        noun = "a number"
    return f"{noun} from {rules['least']} to {rules['most']}"


def _kind(value: object) -> str:
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str):
        return f'"{value[:40]}"'
    if isinstance(value, int) and abs(value) > _MOST_SHOWN:
        return "a huge number"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (dict, list)):
        if isinstance(value, dict):
            return "a table"
        return "a list"
    return "a date or time"

"""Typed settings: ``config/default.toml``, then the user's file, then the command line.

Values are checked when they are read, so the rest of the program can trust them.
"""

import difflib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, replace
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
from engine.prompt.thinking import MAX_BUDGET_TOKENS, ThinkingMode

MOST_THREADS = 128
"""Equal to ``engine.plan.crew.MOST_THREADS``, whose import is slow; a test compares them."""
_MOST_SHOWN = 10**40
_TOOL_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER = re.compile(r"[ -~]{0,4096}")
_TEXT = re.compile(r"[^\0]*")
_ENVIRONMENT_NAME = re.compile(r"[^=\0]+")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,99})?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[a-z0-9_.\[\]:-]{1,200}", re.IGNORECASE)
AUTO = "auto"
"""Value that leaves a choice to the program."""
THINKING_WORDS = "auto, on, off, low, medium, high, or a limit in tokens"
OFFER = "offer"
NEW = "new"
"""Values of ``resume``, besides "last"."""
STATES_SHARE_OF_DISK = 0.1
"""Share of the free disk that saved states may take if the user has set no limit."""
DEFAULT_WEIGHTS = "mmap"
DEFAULT_KV_TYPE = "f16"
"""Type of the KV cache if nothing was measured."""


class Source(str, Enum):
    """Origin of a setting's value."""

    DEFAULT = "default"
    FILE = "your file"
    COMMAND_LINE = "command line"
    MODEL = "model's file"
    """Recommendation in the model's file."""
    MAKER = "model's maker"
    """Recommendation in the table of makers in ``config``."""
    CHOSEN = "/set"


class SettingsError(Refusal):
    """A setting is unknown or its value not allowed; the message names file, key and allowed
    values.
    """


def _setting(
    kind: str = "",
    *,
    default: Any = MISSING,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Return a field with its rules.

    Args:
        kind: special kind of value, as in ``_ALLOWED``.
        default: value of records that tests make; the program's is in ``config/default.toml``.
    """
    metadata = {"kind": kind, "choices": choices, "least": least, "most": most}
    return field(default=default, metadata=metadata)


MOST_TIMEOUT_S = 24 * 3600
BUILT_IN_TOOLS = ("calculator", "clock", "folders", "documents", "python")
"""Names of the tools that come with the program."""
NO_DRAFTS = "", "offer", "off"
"""Values of ``draft_model`` with which no file is used."""


@record
class ToolServerSetting:
    """A server with tools for the model (Model Context Protocol): a program or an address."""

    name: str
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    url: str = ""
    """Address of the server, in place of a command."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of each request to the address."""
    key_variable: str = ""
    """Environment variable with the key for the address."""
    always: tuple[str, ...] = ()
    """Names of tools that run without a question."""
    timeout_s: float = 60.0
    """Seconds without an answer after which a start or a call fails."""


@record
class ToolSettings:
    """Tools that a model may call in the chat."""

    use: str = _setting(choices=("on", "off"))
    """Whether models learn about the tools with the first message."""
    result_tokens: int = _setting(least=16, most=MAX_COUNT)
    """Limit on the results of one round of calls, in tokens."""
    servers: tuple[ToolServerSetting, ...] = _setting("tool servers")
    """Servers with tools."""
    built_in: tuple[str, ...] = _setting("built-in tools", default=())
    """Tools of the program itself that ``use`` and ``/tools on`` turn on."""
    folders: tuple[str, ...] = _setting("paths", default=())
    """Folders whose files the built-in tools may read."""
    always: tuple[str, ...] = _setting("tool names", default=())
    """Names of built-in tools that run without a question."""


@record
class ServeSettings:
    """Limits of ``jalopy serve``."""

    origins: tuple[str, ...] = _setting("origins")
    """Origins of web pages that may use the server; empty for none."""
    pictures: str = _setting()
    """Folder whose pictures requests may name; "" = none."""


@record
class PictureSettings:
    """How models read pictures."""

    mmproj: str = _setting()
    """File of the model's encoder for pictures; "" = the one in the model's folder that fits, "off"
    = none.
    """
    detail: str = _setting(choices=("low", "usual", "high"))
    """Size at which models read pictures: larger ones take longer and more of the context."""
    preview: str = _setting(choices=("on", "blocks", "off"))
    """Whether the chat shows small previews of pictures: by the terminal's graphics where it has
    any, or always as half blocks."""


@record
class Settings:
    """All settings, named as in the settings file."""

    model: str = _setting()
    """Model to open if the command line names none; "" = the last one used."""
    server: str = _setting("server")
    """Address of an API that computes replies; "" = none."""
    model_directories: tuple[str, ...] = _setting("paths")
    """Directories to search for models, besides those of other programs. Downloads go into the
    first.
    """
    context_size: int = _setting(least=0, most=MAX_COUNT)
    """Tokens of the context; 0 = as many as the model and the free memory allow."""
    rope_scaling: str = _setting(choices=("file", "yarn"))
    """Positions beyond the trained context: from the model's file, or scaled by YaRN."""
    kv_type: str = _setting(choices=(AUTO, *KV_TYPES))
    """Type of the KV cache, or of keys/values; "auto" = f16, or a smaller one if memory is
    short.
    """
    checkpoints_mb: int = _setting(least=0, most=MAX_COUNT)
    """Megabytes of checkpoints for models with recurrent layers; 0 = none."""
    system_prompt: str = _setting()
    """System prompt of new conversations; "" = none."""
    date_in_prompt: str = _setting(choices=(AUTO, "on", "off"))
    """Whether the system prompt names the date on which the conversation began; "auto" = in the
    chat, for models whose template names none."""
    thinking: str = _setting("thinking")
    """Thinking before an answer: on, off, low, medium, high, or a limit in tokens; "auto" = the
    choice with /think for this model, or the model's default.
    """
    loop_guard: str = _setting(choices=("on", "off"))
    """Whether an answer that keeps repeating itself is stopped."""
    notify: str = _setting(choices=("on", "off"))
    """Whether to notify when a long answer is done and the terminal is not focused."""
    threads: int = _setting(least=0, most=MOST_THREADS)
    """Threads for writing; 0 = chosen for this machine."""
    prefill_threads: int = _setting(least=0, most=MOST_THREADS)
    """Threads for reading the prompt; 0 = chosen for this machine."""
    pin_threads: str = _setting(choices=("auto", "on", "off"))
    """Whether threads are bound to CPUs; "auto" = if tuning found it faster."""
    weights: str = _setting(choices=("auto", "mmap", "huge"))
    """Memory of weights; "auto" = as tuning found faster, else the mapped file."""
    guess_ahead: str = _setting(choices=("on", "conversation", "text", "predictor", "off"))
    """Kinds of guesses: all ("on"), all but those from earlier conversations ("conversation"), all
    but those of the model's own block ("text"), this block's alone ("predictor"), or none.
    """
    draft_model: str = _setting()
    """File of a small model that guesses for the model; "auto" = one in the model's folder, "offer"
    = say once if there is one, "off".
    """
    prefill_while_typing: str = _setting(choices=("auto", "on", "off"))
    """Whether to read the message while the user pauses; "auto" = not on battery."""
    priority: str = _setting(choices=("auto", "normal", "low"))
    """Priority among other programs; "auto" = low for ``jalopy serve``."""
    search_by_meaning: str = _setting(choices=("on", "off"))
    """Whether to find passages by meaning, if there is an embedding model."""
    theme: str = _setting()
    """Name of the colour theme; "" = the one chosen last."""
    low_power: str = _setting(choices=("auto", "on", "off"))
    """Whether to redraw less often; "auto" = on battery and with one or two cores."""
    prompt_history: str = _setting(choices=("on", "off"))
    """Whether sent messages are saved for the Up key."""
    save_conversations: str = _setting(choices=("on", "off"))
    """Whether conversations are saved."""
    resume: str = _setting(choices=(OFFER, "last", NEW))
    """Conversation at the start: a new one with the last one on Enter, the last one, or a new
    one.
    """
    write_titles: str = _setting(choices=("auto", "on", "off"))
    """Whether the model writes titles while the program is idle; "auto" = not on battery."""
    compact: str = _setting(choices=("ask", "on", "off"))
    """Whether the model summarizes the oldest turns when the context fills: "on" in idle time,
    "ask" = /compact is named then.
    """
    keep_kv_states: str = _setting(choices=("on", "off"))
    """Whether KV caches of conversations are saved, so that nothing is read again."""
    kv_states_quota_gb: float = _setting(least=0.01, most=10_000)
    """Limit on all saved states together, in GiB; the oldest are deleted. The default is also
    limited by the free disk.
    """
    sampling: SamplingSettings = field(kw_only=True)
    """Choice of the next token, and limits."""
    tools: ToolSettings = field(kw_only=True)
    """Tools that a model may call in the chat."""
    serve: ServeSettings = field(kw_only=True)
    """Limits of ``jalopy serve``."""
    pictures: PictureSettings = field(kw_only=True)
    """How models read pictures."""
    adapters: tuple[str, ...] = field(default=(), kw_only=True)
    """Adapters named by ``--lora`` (``app.session.adapters``). They are no setting, since an
    adapter fits one model.
    """
    sources: Mapping[str, Source] = field(default_factory=dict, kw_only=True)
    """Origins of values other than defaults, by dotted key."""

    @property
    def chosen_sampling(self) -> dict[str, Any]:
        """Sampling values that the user has set; they override the recommendations for a model."""
        return {
            field_.name: getattr(self.sampling, field_.name)
            for field_ in fields(self.sampling)
            if f"sampling.{field_.name}" in self.sources
        }

    @property
    def kv_states_quota_bytes(self) -> int:
        """Limit on all saved states together, in bytes; 0 if none are saved.

        Unless the user has set it, it is also limited by the free disk.
        """
        if self.keep_kv_states != "on":
            return 0
        quota_bytes = int(self.kv_states_quota_gb * (1 << 30))
        free_bytes = _free_bytes(paths.states_dir())
        if "kv_states_quota_gb" in self.sources or free_bytes is None:
            return quota_bytes
        return min(quota_bytes, int(free_bytes * STATES_SHARE_OF_DISK))

    @property
    def weights_or_default(self) -> str:
        """Memory mode of weights if nothing is remembered for the model."""
        if self.weights == AUTO:
            return DEFAULT_WEIGHTS
        return self.weights

    @property
    def kv_type_or_default(self) -> str:
        """Type of the KV cache if nothing is remembered for the model."""
        if self.kv_type == AUTO:
            return DEFAULT_KV_TYPE
        return self.kv_type


@cache
def built_in_settings() -> Settings:
    """Return the defaults of ``config/default.toml``, the only place that has them."""
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
    """Return the defaults overridden by a file, by default the user's.

    Raises SettingsError: the file is not valid.
    """
    settings = built_in_settings()
    path = user_file or paths.config_file()
    if path is None or (user_file is None and not is_present(path)):
        return settings
    return merge(settings, read_toml(path, "settings file", SettingsError), str(path))


def settings_of(text: str, source: str) -> Settings:
    """Return the defaults overridden by the text of a settings file.

    Raises SettingsError: as for a file.
    """
    return merge(built_in_settings(), parse_toml(text, source, SettingsError), source)


def merge(settings: Settings, values: Mapping[str, Any], source: str) -> Settings:
    """Override settings with the values of a TOML table, as in the settings file."""
    for key, value in _checked_values(values, source):
        settings = _with_value(settings, key, value, {**settings.sources, key: Source.FILE})
    return settings


def override(settings: Settings, key: str, value: object, source: str) -> Settings:
    """Set one value by its dotted key.

    Args:
        source: name of the option or key for error lines.

    Raises SettingsError: the value is not allowed.
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


def taken_from(settings: Settings, key: str, other_settings: Settings) -> Settings:
    """Return the settings with one value, and its source, from other settings."""
    sources = {name: source for name, source in settings.sources.items() if name != key}
    if key in other_settings.sources:
        sources[key] = other_settings.sources[key]
    return _with_value(settings, key, value_of(other_settings, key), sources)


def _with_value(
    settings: Settings, key: str, value: Any, sources: Mapping[str, Source]
) -> Settings:
    table, _, name = key.rpartition(".")
    changes = {name: value}
    if table:
        changes = {table: replace(getattr(settings, table), **changes)}
    return replace(settings, **changes, sources=sources)


def written(value: object) -> str:
    """Return a value as a user types it: text without quotation marks, list items with commas."""
    if isinstance(value, tuple):
        return ", ".join(
            item.name if isinstance(item, ToolServerSetting) else item for item in value
        )
    return str(value)


def typed_value(settings: Settings, key: str, text: str) -> object:
    """Return the value of a user's text; ``override`` checks it."""
    value_type = type(value_of(settings, key))
    text = text.strip()
    if value_type is tuple:
        return [word.strip() for word in text.split(",") if word.strip()]
    if value_type is str:
        return text
    return as_number(text)


def as_number(text: str) -> object:
    """Return a typed number; other text is returned unchanged, for the error line."""
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text


def choices_of(key: str) -> tuple[str, ...]:
    """Return the allowed words of a setting; empty for numbers, texts and lists."""
    choices: tuple[str, ...] = _rules()[key][1]["choices"]
    return choices


def allowed_of(key: str) -> str:
    """Describe the allowed values of a setting."""
    return _allowed(*_rules()[key])


def setting_keys() -> list[str]:
    """Return all dotted keys in order, such as ``sampling.top_k``."""
    return list(_rules())


_TABLES: dict[str, Any] = {
    "sampling": SamplingSettings,
    "tools": ToolSettings,
    "serve": ServeSettings,
    "pictures": PictureSettings,
}


@cache
def _rules() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return the type and the rules of each setting, by dotted key."""
    return {
        prefix + field_.name: (get_type_hints(table)[field_.name], field_.metadata)
        for prefix, table in (
            ("", Settings),
            *((f"{name}.", table) for name, table in _TABLES.items()),
        )
        for field_ in fields(table)
        if field_.metadata
    }


def _checked_values(values: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a TOML table by dotted key."""
    for name, value in values.items():
        if name == "server" and isinstance(value, Mapping):  # [server] is another name for [serve]
            name = "serve"
        if name in _TABLES and not isinstance(value, Mapping):
            raise SettingsError(
                f"{source}: {name} is {_describe(value)}; it must be a table: [{name}]",
                exit_codes.BAD_DATA,
            )
        if name in _TABLES:
            inner = {f"{name}.{key}": inner_value for key, inner_value in value.items()}
        else:
            inner = {name: value}
        for key, inner_value in inner.items():
            if key not in _rules() or "." in name:
                raise SettingsError(
                    f"{source}: {key} is not a setting{_nearest(key)}", exit_codes.BAD_DATA
                )
            yield key, _checked(key, inner_value, f"{source}: {key}")


def _nearest(dotted: str) -> str:
    keys = setting_keys()
    name = dotted.rpartition(".")[2]
    for key in keys:
        if key.rpartition(".")[2] == name:
            if "." in key:
                return f" (it belongs in a table: {key})"
            return f" (it belongs at the top: {key})"
    near = difflib.get_close_matches(dotted, keys, n=1, cutoff=0.5)
    short_names = {key.rpartition(".")[2]: key for key in keys}
    near = near or [
        short_names[n] for n in difflib.get_close_matches(name, short_names, n=1, cutoff=0.5)
    ]
    if near:
        return f" (nearest: {near[0]})"
    return f" (known: {', '.join(keys)})"


def _checked(key: str, value: object, source_text: str) -> Any:
    """Return the value with the setting's type.

    Raises SettingsError: the value is not allowed.
    """
    value_type, rules = _rules()[key]
    rule = rules["kind"]
    choices = rules["choices"]
    least = rules["least"]
    most = rules["most"]
    if rule == "tool servers":
        return _tool_servers(value, source_text)
    # TOML may have 1 for 1.0; an integer of 400 digits cannot be a float.
    if value_type is float and type(value) is int and least <= value <= most:
        value = float(value)
    if (
        value_type == tuple[str, ...]
        and isinstance(value, list)
        and all(isinstance(item, str) for item in value)
    ):
        value = tuple(value)
    if rule == "thinking" and type(value) is int and 0 <= value <= MAX_BUDGET_TOKENS:
        value = str(value)
    is_right = type(value) is (get_origin(value_type) or value_type)
    if is_right and rule in _PARSERS and (value or rule != "server"):  # "" means none
        try:
            _PARSERS[rule](str(value))
        except ValueError:
            is_right = False
    if is_right and choices:
        is_right = value in choices
    if is_right and isinstance(value, (int, float)):
        is_right = least <= value <= most  # NaN is in no range
    if is_right and isinstance(value, (str, tuple)):
        is_right = not any("\0" in item for item in value)
    for item in value if is_right and isinstance(value, tuple) else ():
        if not _ELEMENTS[rule](item):
            raise SettingsError(
                f"{source_text} has {_describe(item)}; allowed: {_ALLOWED[rule]}",
                exit_codes.BAD_DATA,
            )
    if is_right:
        return value
    raise SettingsError(
        f"{source_text} is {_describe(value)}; allowed: {_allowed(value_type, rules)}",
        exit_codes.BAD_DATA,
    )


def _tool_servers(value: object, source_text: str) -> tuple[ToolServerSetting, ...]:
    """Return the tool servers of a table."""
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{source_text} is {_describe(value)}; it must hold tables: [tools.servers.NAME]",
            exit_codes.BAD_DATA,
        )
    return tuple(
        _tool_server(name, server_values, f"{source_text}.{name[:40]}")
        for name, server_values in value.items()
    )


def _tool_server(name: str, server_values: Any, source_text: str) -> ToolServerSetting:
    if not _TOOL_SERVER_NAME.fullmatch(name):
        raise _wrong_server(
            f"{source_text!a} is not a valid name", "1 to 40 letters, digits, _ and -"
        )
    shared_keys = {"always", "timeout_s"}
    allowed_keys = (
        {"command", "environment", *shared_keys},
        {"url", "headers", "key_variable", *shared_keys},
    )
    if isinstance(server_values, Mapping):
        keys = set(server_values)
    else:
        keys = set()
    for key in sorted(keys - set(_SERVER_RULES)):
        hint = _OF_OTHERS.get(key, f"known: {', '.join(_SERVER_RULES)}")
        raise SettingsError(
            f"{source_text} has an unknown key {key[:40]!a} ({hint})", exit_codes.BAD_DATA
        )
    if not keys & {"command", "url"} or not any(
        keys <= keys_of_kind for keys_of_kind in allowed_keys
    ):
        raise _wrong_server(
            f"{source_text} is not valid", "a table with command or url, and what goes with it"
        )
    for key, value in server_values.items():
        is_sound, allowed = _SERVER_RULES[key]
        if not is_sound(value):
            raise _wrong_server(f"{source_text}.{key} is not valid", allowed)
    return ToolServerSetting(
        name, **{key: _unchanging(value) for key, value in server_values.items()}
    )


def _unchanging(value: Any) -> Any:
    """Return a value with tuples in place of lists and tables."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(value)
    return value


_OF_OTHERS = {
    "args": 'put it into command: ["program", "argument"]',
    "env": "use environment",
    "cwd": 'a command may change it: ["sh", "-c", "cd FOLDER && exec PROGRAM"]',
    "http_headers": "use headers",
    "bearer_token_env_var": "use key_variable",
}
"""Hints for keys of other programs' settings."""


def _wrong_server(problem: str, allowed: str) -> SettingsError:
    return SettingsError(f"{problem}; allowed: {allowed}", exit_codes.BAD_DATA)


def _are_texts(
    value: Any, names: re.Pattern[str] | None = None, texts: re.Pattern[str] = _TEXT
) -> bool:
    """Whether a value is a list of texts, or a table of texts with names of a pattern."""
    if names is not None and not (isinstance(value, Mapping) and all(map(names.fullmatch, value))):
        return False
    if names is not None:
        values = value.values()
    elif isinstance(value, list):
        values = value
    else:
        values = [None]
    return all(isinstance(text, str) and texts.fullmatch(text) for text in values)


_SERVER_RULES: dict[str, tuple[Callable[[Any], object], str]] = {
    "command": (lambda value: _are_texts(value) and value and value[0],
                'a list of texts, beginning with the program: ["program", "argument"]'),
    "environment": (lambda value: _are_texts(value, _ENVIRONMENT_NAME),
                    'a table of texts by variable name, without =: { NAME = "text" }'),
    "url": (lambda value: isinstance(value, str) and is_address(value),
            "an http or https address without a password"),
    "headers": (lambda value: _are_texts(value, _HEADER_NAME, _HEADER),
                'HTTP headers: { X-Team = "mine" }'),
    "key_variable": (lambda value: isinstance(value, str) and _VARIABLE.fullmatch(value),
                     "the name of an environment variable"),
    "always": (_are_texts, 'a list of tools: ["read_file"]'),
    "timeout_s": (lambda value: type(value) in (int, float) and 1 <= value <= MOST_TIMEOUT_S,
                  f"a number of seconds from 1 to {MOST_TIMEOUT_S}"),
}  # fmt: skip
"""Check and description of each key in a server's table."""


_PARSERS: dict[str, Callable[[str], object]] = {
    "thinking": ThinkingMode.parse,
    "server": server_address,
}
_ELEMENTS: dict[str, Callable[[str], object]] = {
    "origins": _ORIGIN.fullmatch,
    # a relative path would depend on the current directory
    "paths": lambda path: path.startswith("~") or Path(path).is_absolute(),
    "built-in tools": lambda name: name in BUILT_IN_TOOLS,
    "tool names": re.compile(r"[a-z_]{1,64}").fullmatch,
}
_ALLOWED = {
    "thinking": THINKING_WORDS,
    "server": "an http or https address without a password, such as https://host:8000/v1",
    "origins": (
        "pages by scheme and host, such as https://notes.example or "
        "http://localhost:3000; no path, no *"
    ),
    "paths": "absolute paths, beginning with / or ~",
    "built-in tools": ", ".join(BUILT_IN_TOOLS),
    "tool names": "names of built-in tools, such as calculate (/tools lists them)",
    "tool servers": "tables in your file: [tools.servers.NAME] with command or url",
}


def _allowed(value_type: Any, rules: Mapping[str, Any]) -> str:
    if rules["kind"] in _ALLOWED:
        return _ALLOWED[rules["kind"]]
    if rules["choices"]:
        return ", ".join(f'"{choice}"' for choice in rules["choices"])
    if value_type is str:
        return "text"
    if value_type is int:
        noun = "a whole number"
    else:
        noun = "a number"
    return f"{noun} from {rules['least']} to {rules['most']}"


def _describe(value: object) -> str:
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


def _free_bytes(directory: Path | None) -> int | None:
    """Return the free bytes on the disk of a directory, which may not exist yet; None if they are
    not known."""
    if directory is None:
        return None
    existing = next((path for path in (directory, *directory.parents) if path.exists()), None)
    if existing is None:
        return None
    try:
        return shutil.disk_usage(existing).free
    except OSError:
        return None

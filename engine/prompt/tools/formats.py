"""The table of formats in which models write calls of tools; a model's own is told by the text of
its chat template."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.prompt.json_schema import lifted, moved, resolved
from engine.prompt.tools.calls import Schemas, ToolCall
from engine.prompt.tools.json_calls import (
    PYTHON_TAG,
    TOOL_CALLS,
    read_llama,
    read_messages,
    read_mistral,
    read_tagged,
)
from engine.prompt.tools.pythonic import END, START, read_list, write_list
from engine.prompt.tools.xml_calls import read_functions, read_pairs
from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Value:
    """A place in a call for a value, as JSON by a schema.

    Attributes:
        schema: of the value.
        fallback: schema of values that can be read as well, where the other one cannot be followed.
    """

    schema: Mapping[str, Any]
    fallback: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """A place in a call for text that matches a regular expression."""

    expression: str


Part = str | Value | Pattern
Frame = Callable[[str, Mapping[str, Any]], list[Part]]


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Attributes:
        name: of the format.
        signs: texts in a template, any of which tells it.
        read: returns the calls in a region of a reply, opening and closing included; none where it
            is no call.
        frame: what a call of one tool consists of, for a grammar.
        openings: texts that begin a region.
        closing: text that ends one; "" where it lasts until the reply ends.
        is_quoted: whether the closing text counts only outside of JSON strings.
        at_start: texts that begin a region only where the answer begins. Such calls count if they
            fit a tool.
        dropped: texts between the parts of a reply that belong to no one.
        write: writes names and arguments as the model does, for templates that leave calls out.
    """

    name: str
    signs: tuple[str, ...]
    read: Callable[[str, Schemas], list[ToolCall]]
    frame: Frame
    openings: tuple[str, ...] = ()
    closing: str = ""
    is_quoted: bool = False
    at_start: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    write: Callable[[list[tuple[str, dict[str, Any]]]], str] | None = None

    @property
    def markers(self) -> str:
        """Its texts, in which control tokens are found that a decoder would leave out."""
        return "".join(
            (*self.openings, self.closing, *self.dropped, "[ARGS][CALL_ID]<|constrain|>")
        )

    def marker_ids(self, tokenizer: Tokenizer) -> set[int]:
        """Return the control tokens among its texts, but for those that end a reply."""
        from engine.tokenizer.special import (
            spelled_in,
        )  # with numpy, which the app's first frame must not wait for

        found = spelled_in(self.markers, dict(tokenizer.control_texts)).values()
        return {one for one in found if one not in tokenizer.end_ids}


def format_of(source: str) -> CallFormat | None:
    """Return the format of which a template speaks, None if it speaks of none."""
    return next((one for one in FORMATS if any(sign in source for sign in one.signs)), None)


_ANY_OBJECT = {"type": "object"}


def _plain(read: Callable[[str], list[ToolCall]]) -> Callable[[str, Schemas], list[ToolCall]]:
    return lambda region, _tools: read(region)


def _object(name: str, schema: Mapping[str, Any], arguments: str = "arguments") -> Value:
    def named(parameters: Mapping[str, Any]) -> dict[str, Any]:
        properties = {"name": {"const": name}, arguments: parameters}
        required = ["name", arguments]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    return Value(named(moved(schema, f"/properties/{arguments}")), named(_ANY_OBJECT))


def _hermes(name: str, schema: Mapping[str, Any]) -> list[Part]:
    return ["<tool_call>\n", _object(name, schema), "\n</tool_call>"]


def _llama(name: str, schema: Mapping[str, Any]) -> list[Part]:
    return [_object(name, schema, "parameters")]


def _mistral(name: str, schema: Mapping[str, Any]) -> list[Part]:
    return [f"{TOOL_CALLS}[", _object(name, schema), "]"]


def _mistral_named(name: str, schema: Mapping[str, Any]) -> list[Part]:
    return [f"{TOOL_CALLS}{name}[ARGS]", Value(schema, _ANY_OBJECT)]


def _harmony(name: str, schema: Mapping[str, Any]) -> list[Part]:
    return [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        Value(schema, _ANY_OBJECT),
    ]


def _pairs(opening: str, before: str, between: str, after: str, closing: str) -> Frame:
    """Return a frame that has each required parameter by itself, in the order of the schema."""

    def frame(name: str, schema: Mapping[str, Any]) -> list[Part]:
        parts: list[Part] = [opening.replace("NAME", name)]
        for key, value in _required(schema):
            parts += [before + key + between, *_bare(value, schema, after)]
        return [*parts, closing]

    return frame


def _required(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names of the required parameters with their schemas, which refer to the whole."""
    found = resolved(schema, schema)
    properties = found.get("properties")
    names = found.get("required")
    if not isinstance(properties, Mapping):
        properties = {}
    if isinstance(names, list):
        return [(key, properties.get(key, {})) for key in names if isinstance(key, str)]
    return []


def _bare(value: Any, whole: Mapping[str, Any], after: str) -> list[Part]:
    """Return what a value without quotes consists of, with the text that ends it."""
    schema = resolved(value, whole)
    enum = schema.get("enum")
    if isinstance(enum, list):
        texts = [one for one in enum if isinstance(one, str)]
    else:
        texts = []
    if isinstance(enum, list) and texts and len(texts) == len(enum):
        return [Pattern(f"({'|'.join(map(_escaped, texts))}){_escaped(after)}")]
    if schema.get("type") == "string" and "enum" not in schema:
        return [Pattern(rf"([^<]|<[^\/])*{_escaped(after)}")]
    return [Value(lifted(value, whole)), after]


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _python(name: str, schema: Mapping[str, Any]) -> list[Part]:
    parts: list[Part] = [f"{START}[{name}("]
    for at, (key, value) in enumerate(_required(schema)):
        parts += [f"{', ' if at else ''}{key}=", Value(lifted(value, schema))]
    return [*parts, f")]{END}"]


_TO_FUNCTION = (
    "<|channel|>commentary to=",
    "<|start|>assistant<|channel|>commentary to=",
    "<|start|>assistant to=",
)
_CHANNELS = tuple(
    f"{start}<|channel|>{channel}<|message|>"
    for start in ("", "<|start|>assistant")
    for channel in ("commentary", "final", "analysis")
)

FORMATS = (
    CallFormat(
        "harmony", ("<|channel|>commentary",), _plain(read_messages), _harmony,
        openings=_TO_FUNCTION, at_start=("to=functions.",), dropped=(*_CHANNELS, "<|end|>"),
    ),
    CallFormat(
        "functions", ("<function=",), read_functions,
        _pairs("<tool_call>\n<function=NAME>\n", "<parameter=", ">\n", "\n</parameter>\n",
               "</function>\n</tool_call>"),
        openings=("<tool_call>", "<function="), closing="</tool_call>",
    ),
    CallFormat(
        "pairs", ("<arg_key>",), read_pairs,
        _pairs("<tool_call>NAME\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n",
               "</tool_call>"),
        openings=("<tool_call>",), closing="</tool_call>",
    ),
    CallFormat(
        "hermes", ("<tool_call>",), _plain(read_tagged), _hermes,
        openings=("<tool_call>",), closing="</tool_call>", is_quoted=True,
    ),
    CallFormat("mistral-named", ("[ARGS]",), _plain(read_mistral), _mistral_named,
               openings=(TOOL_CALLS,)),
    CallFormat("mistral", (TOOL_CALLS,), _plain(read_mistral), _mistral, openings=(TOOL_CALLS,)),
    CallFormat(
        "pythonic", (START, "<|tool_list_start|>", "List of tools: ["), _plain(read_list), _python,
        openings=(START,), closing=END, write=write_list,
    ),
    CallFormat(
        "llama", (PYTHON_TAG, '"parameters": dictionary of argument name'), _plain(read_llama),
        _llama,
        openings=(PYTHON_TAG,), at_start=("{",),
    ),
)  # fmt: skip
"""Formats of the models in use, the more particular first."""

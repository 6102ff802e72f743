"""Table of the formats in which models write tool calls. The chat template of a model decides which
one it uses."""

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
    """Piece of a call: a JSON value.

    Attributes:
        schema: schema of the value.
        fallback: simpler schema that can be used if ``schema`` is not supported.
    """

    schema: Mapping[str, Any]
    fallback: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """Piece of a call: text that matches a regular expression."""

    expression: str


Piece = str | Value | Pattern
Frame = Callable[[str, Mapping[str, Any]], list[Piece]]


@dataclass(frozen=True)
class CallFormat:
    """Format in which a family of models writes calls.

    Attributes:
        name: name of the format.
        signs: texts in a template; each of them identifies the format.
        read: returns the calls in a region of a reply, which includes opening and closing; empty if
            it has none.
        frame: returns the pieces of a call, for a grammar.
        openings: texts that begin a region.
        closing: text that ends a region; empty if it lasts until the end of the reply.
        is_quoted: whether the closing text counts only outside of JSON strings.
        at_start: texts that begin a region only at the beginning of the answer. Such calls count
            only if they fit a tool.
        dropped: texts between the parts of a reply that are removed.
        ignored: tags of the prompt that small models copy to the beginning of a reply, where they
            are removed.
        write: writes names and arguments as the model does, for templates that omit calls; None if
            templates print calls.
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
    ignored: tuple[str, ...] = ()
    write: Callable[[list[tuple[str, dict[str, Any]]]], str] | None = None

    @property
    def markers(self) -> str:
        """All marker texts of the format, which may be control tokens."""
        return "".join(
            (*self.openings, self.closing, *self.dropped, "[ARGS][CALL_ID]<|constrain|>")
        )

    def marker_ids(self, tokenizer: Tokenizer) -> set[int]:
        """Return the ids of control tokens among the markers, without those that end a reply."""
        # It imports numpy, which would delay the app's first frame.
        from engine.tokenizer.special import spelled_in

        ids = spelled_in(self.markers, dict(tokenizer.control_texts)).values()
        return {token_id for token_id in ids if token_id not in tokenizer.end_ids}


def format_of(source: str) -> CallFormat | None:
    """Return the format of a template; None if it has no known format."""
    return next(
        (
            call_format
            for call_format in FORMATS
            if any(sign in source for sign in call_format.signs)
        ),
        None,
    )


_ANY_OBJECT = {"type": "object"}


def _plain(read: Callable[[str], list[ToolCall]]) -> Callable[[str, Schemas], list[ToolCall]]:
    return lambda region, _tools: read(region)


def _object(name: str, schema: Mapping[str, Any], arguments: str = "arguments") -> Value:
    def call_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
        properties = {"name": {"const": name}, arguments: parameters}
        required = ["name", arguments]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    return Value(call_schema(moved(schema, f"/properties/{arguments}")), call_schema(_ANY_OBJECT))


def _hermes(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    return ["<tool_call>\n", _object(name, schema), "\n</tool_call>"]


def _llama(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    return [_object(name, schema, "parameters")]


def _mistral(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    return [f"{TOOL_CALLS}[", _object(name, schema), "]"]


def _mistral_named(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    return [f"{TOOL_CALLS}{name}[ARGS]", Value(schema, _ANY_OBJECT)]


def _harmony(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    return [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        Value(schema, _ANY_OBJECT),
    ]


def _pairs(opening: str, before_key: str, after_key: str, after_value: str, closing: str) -> Frame:
    """Return a frame with each required parameter in its own tags, in the order of the schema."""

    def frame(name: str, schema: Mapping[str, Any]) -> list[Piece]:
        pieces: list[Piece] = [opening.replace("NAME", name)]
        for key, value in _required(schema):
            pieces += [before_key + key + after_key, *_unquoted(value, schema, after_value)]
        return [*pieces, closing]

    return frame


def _required(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and schemas of the required parameters."""
    resolved_schema = resolved(schema, schema)
    properties = resolved_schema.get("properties")
    names = resolved_schema.get("required")
    if not isinstance(properties, Mapping):
        properties = {}
    if isinstance(names, list):
        return [(key, properties.get(key, {})) for key in names if isinstance(key, str)]
    return []


def _unquoted(value: Any, root: Mapping[str, Any], ending: str) -> list[Piece]:
    """Return the pieces of a value without quotes, with the text that ends it."""
    schema = resolved(value, root)
    enum = schema.get("enum")
    if isinstance(enum, list) and enum and all(isinstance(text, str) for text in enum):
        texts = [str(text) for text in enum]
        return [Pattern(f"({'|'.join(map(_escaped, texts))}){_escaped(ending)}")]
    if schema.get("type") == "string" and "enum" not in schema:
        return [Pattern(rf"([^<]|<[^\/])*{_escaped(ending)}")]
    return [Value(lifted(value, root)), ending]


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _python(name: str, schema: Mapping[str, Any]) -> list[Piece]:
    pieces: list[Piece] = [f"{START}[{name}("]
    separator = ""
    for key, value in _required(schema):
        pieces += [f"{separator}{key}=", Value(lifted(value, schema))]
        separator = ", "
    return [*pieces, f")]{END}"]


_TO_FUNCTION = (
    "<|channel|>commentary to=",
    "<|start|>assistant<|channel|>commentary to=",
    "<|start|>assistant to=",
)
_TOOLS_TAGS = ("<tools>", "</tools>")
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
        openings=("<tool_call>", "<function="), closing="</tool_call>", ignored=_TOOLS_TAGS,
    ),
    CallFormat(
        "pairs", ("<arg_key>",), read_pairs,
        _pairs("<tool_call>NAME\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n",
               "</tool_call>"),
        openings=("<tool_call>",), closing="</tool_call>", ignored=_TOOLS_TAGS,
    ),
    CallFormat(
        "hermes", ("<tool_call>",), _plain(read_tagged), _hermes,
        openings=("<tool_call>",), closing="</tool_call>", is_quoted=True, ignored=_TOOLS_TAGS,
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
"""Formats of the models in use, the more specific ones first."""

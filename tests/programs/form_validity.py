"""``python -m tests.programs.form_validity [MODEL...]``: do answers that are to follow a schema
follow it, each time?

Without models: the bundled one, and random ones of two kinds of vocabulary, sampled as wildly as it
gets. Each answer is read as JSON and compared with its schema by a check of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.forms.answer_form import SCHEMA, AnswerForm
from app.forms.constraint import Forms
from app.program.bundled_model import starter_file
from engine import Model, Sampling, Session
from tests.engine import tiny_gguf

SCHEMAS: dict[str, Any] = {
    "flat": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "size": {"enum": ["small", "large", None, 3]},
            "n": {"const": 7},
            "is_capital": {"type": "boolean"},
        },
        "required": ["city", "size", "n", "is_capital"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "people": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": 8},
                        "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["people"],
        "additionalProperties": False,
    },
    "choice": {"anyOf": [{"type": "string", "pattern": "^[a-c]{2,5}$"},
                         {"type": "array", "items": {"type": "null"},
        "maxItems": 4}, {"type": "boolean"}]},
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "leaf": {"type": "integer", "minimum": 1, "maximum": 9},
                    "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
                },
                "required": ["leaf", "left"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "unicode": {
        "type": "object",
        "properties": {"na\u00efve \u4e16\u754c": {"enum": ["\u00e9t\u00e9", "\U0001f600",
                                                            'a"b\\c']}},
        "required": ["na\u00efve \u4e16\u754c"],
        "additionalProperties": False,
    },
}  # fmt: skip
N_CTX = 1024
MOST_TOKENS = 960
_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int,
}  # fmt: skip


def follows(value: Any, schema: Any, root: Any) -> bool:
    """Whether a value is what a schema of the kinds above describes."""
    if "$ref" in schema:
        return follows(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(follows(value, one, root) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return any(
            value == one and type(value) is type(one)
            for one in schema.get("enum", [schema.get("const")])
        )
    if type(value) is not _TYPES[schema["type"]]:
        return False
    if isinstance(value, str):
        return (
            _within(len(value), schema, "Length")
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if isinstance(value, list):
        return _within(len(value), schema, "Items") and all(
            follows(one, schema["items"], root) for one in value
        )
    if isinstance(value, dict):
        properties = schema["properties"]
        has_names = set(schema["required"]) <= set(value) <= set(properties)
        return has_names and all(
            follows(one, properties[name], root) for name, one in value.items()
        )
    return not isinstance(value, int) or schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    )


def _within(n: int, schema: Any, quantity: str) -> bool:
    return bool(schema.get(f"min{quantity}", n) <= n <= schema.get(f"max{quantity}", n))


def answers(
    model: Model, session: Session, times: int, first_seed: int = 0
) -> Iterator[tuple[str, str, bool]]:
    """Yield the schema's name, the answer, and whether it follows the schema, for each of the
    schemas in turn."""
    forms = Forms(model.tokenizer)
    names = list(SCHEMAS)
    for index in range(times):
        name = names[index % len(names)]
        session.prefill(model.tokenizer.encode("An answer:"))
        constraint = forms.constraint(AnswerForm(SCHEMA, json.dumps(SCHEMAS[name]), name))
        sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=first_seed + index)
        pieces = session.generate(
            sampling, max_tokens=MOST_TOKENS, constraint=constraint, guess=index % 2 == 0
        )
        text = "".join(piece.text for piece in pieces)
        try:
            is_right = follows(json.loads(text), SCHEMAS[name], SCHEMAS[name])
        except ValueError:
            is_right = False
        yield name, text, is_right


def random_models(folder: Path) -> list[Path]:
    """Write tiny models of random weights: a SentencePiece vocabulary and a byte-level one."""
    return [
        tiny_gguf.model(name, context_length=N_CTX).write(folder / f"{name}.gguf")
        for name in ("llama", "qwen2")
    ]


def main(arguments: list[str]) -> int:
    """Ask, count, and show what does not follow its schema."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.form_validity", description=__doc__
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--times", type=int, default=200)
    options = parser.parse_args(arguments)
    n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        starter = starter_file()
        assert starter is not None
        for path in options.models or [starter, *random_models(Path(folder))]:
            model = Model.open(path)
            session = model.session(n_ctx=N_CTX)
            wrong = [
                (name, text)
                for name, text, is_right in answers(model, session, options.times)
                if not is_right
            ]
            print(
                f"{path.name}: {options.times - len(wrong)} of {options.times} follow their schema",
                flush=True,
            )
            for name, text in wrong[:5]:
                print(f"  {name}: {text[:200]!r}")
            n_wrong += len(wrong)
            model.close()
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Forms of answers from anywhere: a form that replies follow, or one line that refuses it; who
asked is never harmed.

An input is a JSON object: ``kind`` and ``text`` of the form, whether it stands next to a tool
(``tool``), and ``seed``, by which one of the allowed tokens is taken again and again.
"""

from __future__ import annotations

import atexit
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from app.forms.answer_form import GRAMMAR, REGEX, SCHEMA, AnswerForm, FormError, make_form
from app.forms.constraint import Forms
from app.forms.process import FormLimits
from app.server.message_fields import Tools
from app.server.reply_form import reply_form
from engine.prompt.tools.formats import FORMATS
from engine.tokenizer import Tokenizer
from tests.engine.tiny_gguf import bpe_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, kind_of, require_clean_line

_CPU_S = 2.0
_MEMORY_BYTES = 100 << 20
"""Limits of this process; those that compile have their own."""
_LIMITS = FormLimits(compile_cpu_s=0.5, step_cpu_s=0.5, memory_bytes=128 << 20)
_MAX_TOKENS = 24
_KINDS = (SCHEMA, REGEX, GRAMMAR)


def _chained(keyword: str, n: int) -> str:
    links = {f"d{index}": {keyword: [{"$ref": f"#/$defs/d{index + 1}"}]} for index in range(n)}
    return json.dumps(
        {"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": {}}}, separators=(",", ":")
    )


_SCHEMAS = (
    '{"type":"object","properties":{"a":{"type":"string","maxLength":9},"b":{"enum":[1,null,"x"]}},"required":["a"]}',
    '{"type":"array","items":{"$ref":"#/$defs/n"},"$defs":{"n":{"anyOf":[{"type":"null"},{"$ref":"#"}]}}}',
    '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}', "true",
    '{"type":"string","format":"no one","pattern":"^(a+)+$"}',
    '{"$id":"x","$schema":"y","$ref":"x#/$defs/q"}',
    '{"type":"string","minLength":99999,"maxLength":9999999}',
    '{"type":"array","minItems":99999999}', "[]",
    '{"type":"integer","multipleOf":1000003}',
    '{"oneOf":[{"type":"string"},{"const":"a"}]}', '{"properties":{"a":' * 100 + "{}" + "}}" * 100,
    "[" * 9999,
    *(_chained(keyword, n) for keyword in ("allOf", "anyOf") for n in (20, 1400)),
)  # fmt: skip
_REGEXES = ("[a-c]{2,5}x|y", "a*" * 2000, "((a{1000}){1000}){1000}", "(?=a)b", "(a|aa)+$",
            "\\p{L}{1,200}", "[^\\x00]*",
            "(" * 500, "\x00", "\ud800", "a{0}", "", "(?i)straße|ß")  # fmt: skip
_GRAMMARS = (
    'root ::= "a" b\nb ::= [0-9]{1,3} | "x" root',
    'start: A b?\nA: /[a-z]+/\nb: "," A | "(" start ")"',
    "\n".join(["start: r0", *(f"r{at}: r{at + 1}" for at in range(3000)), 'r3000: "a"']),
    "root ::= root",
    "start: start",
    "\n".join(["start: T40", 'T0: "a"', *(f"T{at}: T{at - 1} T{at - 1}" for at in range(1, 41))]),
    "start: @form",
    "\n".join(["start: t40", 't0: "a"', *(f"t{at}: t{at - 1} t{at - 1}" for at in range(1, 41))]),
    "%import /etc/passwd",
    'start: %json {"type":"integer"}', "start: <[0]> <[999999999]>", "start: %lark { start: /a/ }",
    "calls: \"x\"",
    'root ::= "\\uD800\\U0010FFFF\\x00"', "start: A\nA[lazy]: /.*/ \"end\"", "start: " + "(" * 9999,
    "a ::= b\n" * 500,
)  # fmt: skip
_KEYWORDS = ("type", "properties", "items", "anyOf", "allOf", "oneOf", "$ref", "$defs", "enum",
             "const", "pattern",
             "not",
             "minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems",
             "required", "format",
             "additionalProperties", "patternProperties", "prefixItems", "$id", "$anchor",
             "definitions")  # fmt: skip
_VALUES: tuple[Any, ...] = ("string", "integer", "object", "array", "#", "#/$defs/a",
                            "#/properties/a", "a", "^a+$",
                            "date",
                            0, 1, -1, 3, 1e308, 10**30, 99999, True, None, [], {}, ["a", "b"],
                            [1, None])  # fmt: skip


def seeds() -> list[bytes]:
    """Forms as people write them, and hostile ones."""
    texts = [(SCHEMA, _SCHEMAS), (REGEX, _REGEXES), (GRAMMAR, _GRAMMARS)]
    return [
        _pack(form_type, text, index % 3 == 0, index)
        for form_type, some in texts
        for index, text in enumerate(some)
    ]


def _pack(form_type: str, text: str, tool: bool, seed: int) -> bytes:
    return json.dumps({"kind": form_type, "text": text, "tool": tool, "seed": seed}).encode()


# ---- what is made


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Return an input with a changed form."""
    case = json.loads(data)
    form_type = case["kind"]
    text = case["text"]
    choice = rng.randrange(6)
    if choice == 0:
        form_type = SCHEMA
        text = json.dumps(made_schema(rng, 4))
    elif choice == 1:
        form_type = GRAMMAR
        text = _grammar(rng)
    elif choice == 2:
        form_type = REGEX
        text = _regex(rng, 4)
    elif choice == 3 and form_type == SCHEMA:
        text = json.dumps({"$defs": {"a": made_schema(rng, 2)}, **made_schema(rng, 3)})
    else:
        pieces = [
            json.loads(donor)["text"].encode("utf-8", "surrogatepass")
            for donor in rng.choices(inputs, k=3)
        ]
        text = mutate_bytes(rng, text.encode("utf-8", "surrogatepass"), pieces).decode(
            "utf-8", "replace"
        )
    return _pack(form_type, text, rng.random() < 0.3, rng.randrange(1 << 16))


def made_schema(rng: Random, depth: int) -> dict[str, Any]:
    return {key: _value(rng, key, depth) for key in rng.sample(_KEYWORDS, rng.randrange(1, 5))}


def _value(rng: Random, key: str, depth: int) -> Any:
    if not depth or rng.random() < 0.3:
        return rng.choice(_VALUES)
    if key in ("properties", "$defs", "definitions", "patternProperties"):
        return {
            name: made_schema(rng, depth - 1) for name in rng.sample("abc", rng.randrange(1, 4))
        }
    if key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        return [made_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if key in ("items", "additionalProperties", "not"):
        return made_schema(rng, depth - 1)
    return rng.choice(_VALUES)


def _regex(rng: Random, depth: int) -> str:
    if not depth or rng.random() < 0.2:
        return rng.choice(("a", "b", ".", "[^a]", "[a-z]", "\\d", "é", "\\/", "x?", "\\p{Lu}"))
    inner = _regex(rng, depth - 1)
    times = rng.choice(("*", "+", "?", "{3}", "{2,}", "{0,400}", "{1000}"))
    return rng.choice(
        (inner + _regex(rng, depth - 1), f"({inner}|{_regex(rng, depth - 1)})", f"({inner}){times}")
    )


def _grammar(rng: Random) -> str:
    is_lark = rng.random() < 0.6
    n = rng.choice((2, 3, 8, 60))
    root, sign = ("start", ":") if is_lark else ("root", "::=")
    names = [root, *(rng.choice(("r", "T")) + str(index) for index in range(1, n))]
    symbols = (
        '"a"',
        '"b" "c"',
        *names,
        f"{rng.choice(names)}*",
        f"({rng.choice(names)} | {rng.choice(names)})?",
    )
    pattern = f"/{_regex(rng, 2)}/" if is_lark else "[a-z]+"
    rules = (" ".join(rng.choices((*symbols, pattern), k=rng.randrange(1, 4))) for _ in names)
    return "\n".join(
        f"{name} {sign} {rule} | {rng.choice(symbols)}"
        for name, rule in zip(names, rules, strict=True)
    )


# ---- what must hold


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(as_read(bpe_vocabulary()), "tiny.gguf")


@lru_cache(maxsize=1)
def _forms() -> Forms:
    forms = Forms(_tokenizer(), _LIMITS)
    atexit.register(forms.close)
    return forms


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Follow the form for some tokens; whatever came of it, a sound form works after it."""
    case = json.loads(data)
    _forms()
    with watch.bounded("following a form", _CPU_S, _MEMORY_BYTES):
        try:
            outcome = _follow(case)
        except FormError as error:
            # As it goes to a log and a screen; words of the form may stand in it.
            outcome = kind_of(require_clean_line(str(error)))
    with suppress(FormError), watch.bounded("following a sound form", _CPU_S, _MEMORY_BYTES):
        if (
            _follow({"kind": REGEX, "text": "yes|no", "tool": False, "seed": case["seed"]})
            == "complete"
        ):
            return outcome
    raise Fault(f"a sound form cannot be followed after this one: {outcome}")


def _follow(case: dict[str, Any]) -> str:
    tokenizer = _tokenizer()
    rng = Random(case["seed"])
    form = make_form(case["kind"], case["text"], "form")
    if case["tool"]:
        parameters = json.loads(case["text"]) if _is_object(case) else {}
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        either = reply_form(tokenizer, form, Tools((tool,)), FORMATS[case["seed"] % len(FORMATS)])
        assert isinstance(either, AnswerForm)
        form = either
    constraint = _forms().constraint(form)
    text = b""
    try:
        for _ in range(_MAX_TOKENS):
            if constraint.is_over:
                break
            allowed = constraint.allowed()
            if len(allowed) != tokenizer.vocab_size or not allowed.any():
                raise Fault(f"{int(allowed.sum())} tokens of {len(allowed)} may come next")
            token = int(rng.choice(constraint.forced()[:1] or allowed.nonzero()[0]))
            if not allowed[token]:
                raise Fault("a token is forced that may not come")
            if token in tokenizer.end_ids:
                break
            constraint.accept(token)
            text += tokenizer.token_bytes(token) or b""
        else:
            return "goes on"
        if case["kind"] == REGEX and not case["tool"]:
            _require_match(case["text"], text)
        return "complete"
    finally:
        constraint.close()


def _is_object(case: dict[str, Any]) -> bool:
    with suppress(ValueError, RecursionError):
        return case["kind"] == SCHEMA and isinstance(json.loads(case["text"]), dict)
    return False


def _require_match(pattern: str, text: bytes) -> None:
    """Python reads plain patterns as the engine does."""
    if re.fullmatch(r"[a-z|(){},0-9*+?]*", pattern) and len(pattern) < 60:
        with suppress(re.error):
            if not re.fullmatch(pattern, text.decode("utf-8", "replace")):
                raise Fault(f"the reply {text[:60]!r} does not match")


TARGET = Target(
    seeds,
    mutate,
    run,
    ("app/forms/constraint.py", "app/forms/process.py", "engine/prompt/json_schema.py"),
)

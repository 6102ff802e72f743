"""Recognition of the pre-tokenizer that a ``tokenizer.json`` describes, by its result for a sample.

Expressions of the same meaning have many spellings, so they are not compared. The result is a key
of ``PRE_TOKENIZERS``; pre-tokenizers with equal results for the sample are the same for users.

Source: https://huggingface.co/docs/tokenizers/api/pre-tokenizers
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from engine.convert.bounded import JsonObject, shown_value
from engine.tokenizer.pretokenize import PRE_TOKENIZERS, splitter

Cut = Callable[[str, float], list[str]]
"""Function that splits a text; it raises TimeoutError after the given time."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
MAX_EXPRESSION = 4096
_MOST_STEPS = 16
TIMEOUT_S = 5.0
_NOT_BY_BYTES = ("default", "gemma4", "sarvam-moe", "whitespace")
"""Default of files without a name, and pre-tokenizers of vocabularies that merge characters."""

SAMPLE = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n        \n\r\n\r\n word\r\n (normal) "
    "\U0001f680 \U0001f636\u200d\U0001f32b\ufe0f \u2705 3 33 333 3333 33333 333333 3333333 333333"
    "33 3.3 3..3 3...3 a1b22c333d4444 1,234,567 \u0661\u0662\u0663\u0664 \u00b2\u00b3\u00bd\u2167"
    " x=10000;y=[2,30] I've 'told he's, 'RE you 'M 'D We'Ve a'lL don\u2019t it'S O'Neil can'tdo I"
    "'MX we'llo CamelCaseWord XMLHttp HTTPServer iPhone \u00c9t\u00e9\u00c9T\u00c9 \u01c5x \u02b0"
    "A \u00aax nai\u0308ve e\u0301E\u0301 \u043d\u0435\u0449\u043e \u041d\u0410 \u0431\u044a"
    "\u043b\u0433\u0430\u0440\u0441\u043a\u0438 \u4f60\u597d\uff0c\u4e16\u754c\uff01apple\u5de5"
    "\u4f5c1314\u5929\uff5e\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d"
    "\uc5b4abc \u3131\u3145 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u1780\u17b6\u1793\u17cb \u0915"
    "\u094d\u0937\u093f \u0964 \u3105\u3107 \u2026\u2014\u201cq\u201d ------=======''''''```````"
    '""""......!!!!!!?????? /path/to/file //x\n/y ;\n\n;\r\n<sentinel:12> IMGIMGABCZ a_b _c $'
    "5 +1 <a> ^~| \u20ac\u00a3 #tag @me %x% &amp; *b* \\n (a)(b) f(x)) end  two   three    four  "
    "   five\u3000wide\u00a0nbsp   12 ab 12.5e-7    tail   \n   x\n\n\ny\n \t z 1\n2\n\n3 \n"
)


def find_pre_tokenizer(tokenizer: Mapping[str, Any], name: str) -> str:
    """Return the value of ``tokenizer.ggml.pre`` for a byte-level vocabulary.

    Args:
        tokenizer: Content of the file ``name``.

    Raises:
        ConversionError: The pre-tokenizer is not known.
    """
    read = JsonObject(tokenizer, name)
    cuts = _cuts(read, read.get("pre_tokenizer"))
    ignores_merges = read.under("model").flag("ignore_merges", False)
    pieces = _applied(read, cuts)
    matches = [
        candidate
        for candidate in PRE_TOKENIZERS
        if candidate not in _NOT_BY_BYTES and list(splitter(candidate)(SAMPLE)) == pieces
    ]
    if not matches:
        raise read.fail(
            "pre_tokenizer cuts words in a way that is not known (get a GGUF file of this model)"
        )
    return next(
        (match for match in matches if PRE_TOKENIZERS[match].ignore_merges == ignores_merges),
        matches[0],
    )


def _applied(read: JsonObject, cuts: list[Cut]) -> list[str]:
    pieces = [SAMPLE]
    until_s = time.monotonic() + TIMEOUT_S
    for cut in cuts:
        try:
            pieces = [subpiece for piece in pieces for subpiece in cut(piece, until_s) if subpiece]
        except TimeoutError:
            raise read.fail(
                f"pre_tokenizer needs over {TIMEOUT_S:.0f} s for a page of text (made wrongly?)"
            ) from None
    if "".join(pieces) != SAMPLE:
        raise read.fail(
            "pre_tokenizer drops text, which is not supported (get a GGUF file of this model)"
        )
    return pieces


def _cuts(read: JsonObject, node: Any) -> list[Cut]:
    """Return the splitting steps of a description."""
    if not isinstance(node, dict):
        if node is None:
            problem = "no pre_tokenizer"
        else:
            problem = f"{shown_value(node)} in place of a pre_tokenizer"
        raise read.fail(f"has {problem} (get a GGUF file of this model)")
    step_type = node.get("type")
    steps = node.get("pretokenizers")
    if step_type == "Sequence" and isinstance(steps, list) and len(steps) <= _MOST_STEPS:
        if any(isinstance(step, dict) and step.get("type") == "Sequence" for step in steps):
            raise read.fail("pre_tokenizer has a sequence in a sequence, which is not supported")
        return [cut for step in steps for cut in _cuts(read, step)]
    if step_type == "ByteLevel" and node.get("add_prefix_space") is not True:
        if node.get("use_regex", True):
            return [_cut(read, _GPT2)]
        return []
    if step_type == "Digits":
        return [_cut(read, r"\p{N}" if node.get("individual_digits") else r"\p{N}+")]
    if step_type == "Punctuation" and node.get("behavior", "Isolated") in (
        "Isolated",
        "Contiguous",
    ):
        return [_cut(read, _PUNCTUATION + ("+" if node.get("behavior") == "Contiguous" else ""))]
    if step_type == "Split":
        return [_split(read, node)]
    raise read.fail(
        f"pre_tokenizer {shown_value(step_type)} is not supported in this form (get a GGUF file of "
        f"this model)"
    )


def _split(read: JsonObject, node: Mapping[str, Any]) -> Cut:
    import regex

    setting = node.get("pattern")
    if isinstance(setting, dict):
        pattern = setting
    else:
        pattern = {}
    expression = pattern.get("Regex")
    text = pattern.get("String")
    if isinstance(text, str):
        expression = regex.escape(text)
    drops_gaps = node.get("behavior") == "Removed" and node.get("invert") is True
    if (
        not isinstance(expression, str)
        or len(expression) > MAX_EXPRESSION
        or not (drops_gaps or node.get("behavior") == "Isolated")
    ):
        raise read.fail(
            "pre_tokenizer splits in a way that is not supported (get a GGUF file of this model)"
        )
    return _cut(read, expression, drops_gaps)


def _cut(read: JsonObject, expression: str, drops_gaps: bool = False) -> Cut:
    """Return a function that splits a text into matches and the gaps between them."""
    import regex

    try:
        pattern = regex.compile(expression, regex.V1 if "&&" in expression else 0)
    except (regex.error, OverflowError, RecursionError, MemoryError):
        raise read.fail("pre_tokenizer has an expression that cannot be read") from None

    def cut(text: str, until_s: float) -> list[str]:
        pieces = []
        position = 0
        for match in pattern.finditer(text, timeout=max(0.001, until_s - time.monotonic())):
            if not drops_gaps:
                pieces += [text[position : match.start()], match.group()]
            else:
                pieces += [match.group()]
            position = match.end()
        if drops_gaps:
            return pieces
        return [*pieces, text[position:]]

    return cut

r"""Pre-tokenizers: the expressions that cut text into words before byte-level BPE, one set for each
``tokenizer.ggml.pre``.

The expressions are part of each vocabulary's definition (its ``tokenizer.json``), in the form
llama.cpp uses (ggml-org/llama.cpp, src/llama-vocab.cpp, ``llm_tokenizer_bpe``). They are applied
one after the other: each cuts the pieces of the one before into matches and the gaps between them.
Where llama.cpp approximates classes of cased letters ("not a-z"), the original class is used: the
two differ for letters outside ASCII and for marks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from engine.errors import TokenizerError, printable
from engine.tokenizer.newer_characters import has_newer, with_older


@dataclass(frozen=True)
class DigitGroups:
    r"""Runs of digits that are cut into groups of three from the right, as thousands are written.

    As an expression, ``\d{1,3}(?=(?:\d{3})*\b)`` takes the square of a run's length.
    """

    run: str


@dataclass(frozen=True)
class PreTokenizer:
    """Word boundaries of one family of vocabularies.

    Attributes:
        expressions: regular expressions, applied in order. A ``DigitGroups`` cuts its matches into
            groups of three.
        ignore_merges: whether a word that is a token is taken without merging.
        add_bos: whether a file without ``add_bos_token`` needs the begin-of-text token.
        is_raw: whether merges are of characters, with spaces written as U+2581, not of bytes.
    """

    expressions: tuple[str | DigitGroups, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    is_raw: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_BLANKS_BY_SIZE = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_BETWEEN_SIGNS = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _modern(
    digits: str, marks: str = "", suffix: str = f"{_SUFFIX}|", blanks: str = _BLANKS
) -> str:
    """Return the expression of Llama 3, Qwen 2 and Qwen 3.5, which differ in the groups of digits
    and the marks within words."""
    letter = rf"[\p{{L}}{marks}]"
    signs = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"{suffix}[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}|{signs}|{blanks}"


def _cased(digits: str, suffix: str = "", but: str = "", signs_end: str = r"[\r\n/]*") -> str:
    """Return an expression whose words end before a capital after a small letter. Letters without
    case and marks go with either.

    Args:
        digits: expression that cuts numbers.
        suffix: optional ending of a word.
        but: lookahead before every letter that excludes some letters.
        signs_end: characters that may follow signs.
    """
    upper = rf"(?:{but}[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}])"
    lower = rf"(?:{but}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}])"
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{signs_end}|{_BLANKS}"


_KIMI = r"\p{Han}+|" + _cased(
    r"\p{N}{1,3}", f"{_SUFFIX}?", but=r"(?!\p{Han})", signs_end=r"[\r\n]*"
)
_GPT4O = _cased(r"\p{N}{1,3}", f"{_SUFFIX}?")

# Chinese, Japanese and Korean separately, then words that a sign may begin.
_DEEPSEEK3_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_LED_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK3_WORDS = rf"{_LED_WORDS}[\r\n]*|{_BLANKS}"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-"
    "\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_ASIAN = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
    "\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _DEEPSEEK3_KANA
)

# Cased letters as DeepSeek's tokenizer.json lists them: fewer than today's \p{L&}.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": PreTokenizer((_modern(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True),
    "smaug-bpe": PreTokenizer((_modern(r"\p{N}{1,3}"),)),
    "glm4": PreTokenizer((_modern(r"\p{N}{1,3}"),), ignore_merges=True),
    "qwen2": PreTokenizer((_modern(r"\p{N}"),)),
    "qwen35": PreTokenizer((_modern(r"\p{N}", r"\p{M}"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _modern(r"\p{N}+")), ignore_merges=True),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _modern(r"\p{N}"))),
    "tekken": PreTokenizer((_cased(r"\p{N}"),), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "tiny_aya": PreTokenizer((DigitGroups(r"\d+\b"), _GPT4O)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "youtu": PreTokenizer((_YOUTU_ASIAN, _cased(r"\p{N}", f"{_SUFFIX}?")), ignore_merges=True),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", _DEEPSEEK3_KANA, _DEEPSEEK3_WORDS)),
    "afmoe": PreTokenizer((DigitGroups(r"\p{N}+"), _ASIAN, _DEEPSEEK3_WORDS)),
    "superbpe": PreTokenizer((DigitGroups(r"\p{N}+"),)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "bailingmoe": PreTokenizer(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
            r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
            r"|\s+(?!\S)|\s+",
        )
    ),
    "seed-coder": PreTokenizer(
        (rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{_BLANKS}",)
    ),
    "exaone-moe": PreTokenizer(
        (
            rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "gemma4": PreTokenizer((r"[^\n]+|\n+",), add_bos=True, is_raw=True),
    "sarvam-moe": PreTokenizer((r"[^\n]+|\n+",), is_raw=True),
    "whitespace": PreTokenizer((r"\S+",), is_raw=True),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    "jais-2": PreTokenizer((_modern(r"\p{N}{1,3}", blanks=rf"\s*[\r\n]+{_BLANKS_BY_SIZE}|\s"),)),
    "ufakzeka": PreTokenizer((_modern(r"\p{N}", suffix=""),)),
    "bloom": PreTokenizer((_BETWEEN_SIGNS,)),
    "viking": PreTokenizer((_BETWEEN_SIGNS, r"\p{N}")),
    "spark2_5": PreTokenizer(
        (r"\p{N}{1,3}", _DEEPSEEK3_KANA, rf"{_LED_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            "[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "deepseek-coder": PreTokenizer(
        (
            "[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}",
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"(?<!\s)\s+$",
            # where blanks begin: tried at each of them it takes the square of their number
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}+",
        )
    ),
}

ALIASES = {
    name: canonical
    for canonical, names in {
        "llama-bpe": (
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ),
        "smaug-bpe": ("dbrx", "chatglm-bpe"),
        "glm4": ("glm5",),
        "gpt-2": (
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ),
        "bloom": ("poro-chat", "gpt3-finnish"),
        "sarvam-moe": ("granite-embed-multi-311m",),
        "qwen2": (
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "grok-2",
            "solar-open",
            "kormo",
            "f2llmv2",
        ),
        "smollm": (
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ),
        "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
        "tiny_aya": ("cohere2moe",),
        "deepseek-v3": ("hunyuan-dense", "hy_v4", "joyai-llm"),
        "bailingmoe": ("bailingmoe2", "llada-moe"),
    }.items()
    for name in names
}
"""Aliases: values of ``tokenizer.ggml.pre`` with the same expressions, as in llama.cpp."""


def resolve_pre_tokenizer(name: str, file_name: str) -> str:
    """Return the key of ``PRE_TOKENIZERS`` for a value of ``tokenizer.ggml.pre``.

    Raises:
        TokenizerError: the name is unknown; a guess could silently give the model wrong tokens.
    """
    canonical = ALIASES.get(name, name)
    if canonical not in PRE_TOKENIZERS:
        problem = f"tokenizer.ggml.pre is '{printable(name)}'"
        raise TokenizerError(
            f"{file_name}: {problem}, a way to cut words that is not known (get another model)"
        )
    return canonical


@cache
def splitter(name: str) -> Callable[[str], Iterator[str]]:
    """Return a function that cuts text into words; the joined words equal the text.

    Args:
        name: a key of ``PRE_TOKENIZERS``.
    """
    import regex

    def cut(expression: str | DigitGroups) -> Callable[[str], Iterable[str]]:
        pattern = regex.compile(
            f"({expression.run if isinstance(expression, DigitGroups) else expression})"
        )
        if isinstance(expression, str):
            return pattern.splititer
        # Matches and gaps take turns, a gap first.
        return lambda text: (
            group
            for index, piece in enumerate(pattern.splititer(text))
            for group in (_threes(piece) if index % 2 else [piece])
        )

    steps = [cut(expression) for expression in PRE_TOKENIZERS[name].expressions]

    def split(text: str) -> Iterator[str]:
        replaces_newer = has_newer(text)
        pieces = iter([with_older(text) if replaces_newer else text])
        for step in steps:
            pieces = filter(None, chain.from_iterable(map(step, pieces)))
        if replaces_newer:
            return _in_place(text, pieces)
        return pieces

    return split


def _in_place(text: str, pieces: Iterable[str]) -> Iterator[str]:
    """Yield a text in pieces of the same lengths as those of another text."""
    position = 0
    for piece in pieces:
        yield text[position : position + len(piece)]
        position += len(piece)


def _threes(digits: str) -> list[str]:
    first = len(digits) % 3
    return [
        digits[:first],
        *(digits[position : position + 3] for position in range(first, len(digits), 3)),
    ]

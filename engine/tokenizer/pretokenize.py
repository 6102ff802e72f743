r"""How byte-level BPE cuts text into words before merging: one set of expressions per ``tokenizer.ggml.pre``.

The expressions are part of each vocabulary's definition (its ``tokenizer.json``), in the form llama.cpp uses
(ggml-org/llama.cpp, src/llama-vocab.cpp, ``llm_tokenizer_bpe``). They are applied one after the other: each cuts the
pieces of the one before into matches and the gaps between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from engine.errors import TokenizerError, shown


@dataclass(frozen=True)
class PreTokenizer:
    """Word boundaries of one family of vocabularies.

    Attributes:
        expressions: regular expressions, applied in order.
        ignore_merges: a word that is a token as a whole is taken without merging.
        add_bos: whether a file without ``add_bos_token`` wants the begin-of-text token.
    """

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

# The digits' group is the only difference between the families of Llama 3 and Qwen 2.
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Words end before a capital that follows a small letter; letters without case and marks go with either.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Cased letters as DeepSeek's tokenizer.json lists them: fewer than today's \p{L&}.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": PreTokenizer((_MODERN.format(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True),
    "smaug-bpe": PreTokenizer((_MODERN.format(digits=r"\p{N}{1,3}"),)),
    "qwen2": PreTokenizer((_MODERN.format(digits=r"\p{N}"),)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"(?<!\s)\s+$",  # where blanks begin: tried at each of them it takes the square of their number
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}+",
        )
    ),
}

ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "falcon-h1": "llama-bpe",
    "pixtral": "llama-bpe",
    "lfm2": "llama-bpe",
    "dbrx": "smaug-bpe",
    "phi-2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "jais": "gpt-2",
    "deepseek-r1-qwen": "qwen2",
    "megrez": "qwen2",
    "stablelm2": "qwen2",
    "starcoder": "smollm",
    "refact": "smollm",
    "command-r": "smollm",
    "codeshell": "smollm",
}
"""Other values of ``tokenizer.ggml.pre`` with the same expressions (llama.cpp, the same source)."""


def resolve_pre_tokenizer(name: str, file_name: str) -> str:
    """Name in ``PRE_TOKENIZERS`` for a value of ``tokenizer.ggml.pre``.

    Raises:
        TokenizerError: the name is unknown; guessing would silently give the model other tokens than it learnt.
    """
    known = ALIASES.get(name, name)
    if known not in PRE_TOKENIZERS:
        supported = ", ".join(PRE_TOKENIZERS)
        raise TokenizerError(f"{file_name}: tokenizer.ggml.pre is '{shown(name)}' (supported: {supported})")
    return known


@cache
def splitter(name: str) -> Callable[[str], list[str]]:
    """Function that cuts text into words; the words joined are the text.

    Args:
        name: a key of ``PRE_TOKENIZERS``.
    """
    import regex

    patterns = [regex.compile(f"({expression})") for expression in PRE_TOKENIZERS[name].expressions]

    def split(text: str) -> list[str]:
        pieces = [text]
        for pattern in patterns:
            pieces = [part for piece in pieces for part in pattern.split(piece) if part]
        return pieces

    return split

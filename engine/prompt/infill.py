"""Prompts for filling in the middle: text before and after a gap, and text of other files.

Source: ggml-org/llama.cpp, tools/server, ``format_prompt_infill``. Qwen2.5-Coder's report
(arXiv:2409.12186) describes the marks of files and projects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

MAX_AROUND_TOKENS = 2048
"""Limit on the tokens around the gap: three quarters before it, one quarter after it."""
MIN_FREE_TOKENS = 128
"""Minimum of tokens that texts of other files leave free for what fills the gap."""
PROJECT = "myproject\n"
FILE = "filename\n"
"""Names in prompts, as other servers write them."""
SNIPPET = "\n\n--- snippet ---\n\n"
"""Text before a text of another file if the vocabulary has no mark for files."""
_MARGIN_CHARS = 4096
"""Characters of a text that are tokenized beyond those that may count."""


@dataclass(frozen=True)
class InfillText:
    """Text with a gap.

    Attributes:
        prefix: text before the gap, without ``line``.
        suffix: text after the gap.
        line: text between ``prefix`` and the gap: the beginning of the line that is typed.
        others: names and texts of other files.
    """

    prefix: str
    suffix: str
    line: str = ""
    others: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class InfillPrompt:
    """Prompt whose reply fills a gap.

    Attributes:
        ids: token ids.
        is_cut: whether a text did not fit as a whole.
    """

    ids: list[int]
    is_cut: bool


def infill_prompt(
    tokenizer: Tokenizer,
    text: InfillText,
    n_ctx: int,
    max_tokens: int,
    suffix_first: bool = False,
) -> InfillPrompt:
    """Return the prompt of a text with a gap.

    Texts that are too long lose what is farthest from the gap. Marks that are spelled out in a text
    stay text.

    Args:
        tokenizer: tokenizer of the model.
        text: the text.
        n_ctx: size of the context in tokens.
        max_tokens: limit on the tokens that fill the gap; 0 for none.
        suffix_first: whether the suffix comes before the prefix.

    Raises:
        EngineError: the vocabulary lacks the marks.
    """
    marks = tokenizer.infill
    if marks.prefix is None or marks.suffix is None or marks.middle is None:
        raise EngineError(f"the vocabulary has no marks for: {', '.join(marks.missing)}")

    n_around = min(MAX_AROUND_TOKENS, n_ctx // 2)
    line_ids = _encode(tokenizer, text.line)
    n_suffix = max(0, n_around // 4 - 2 - len(line_ids))
    prefix_ids, prefix_is_cut = _last(tokenizer, text.prefix, n_around // 4 * 3)
    suffix_ids, suffix_is_cut = _first(tokenizer, text.suffix, n_suffix)

    before = [marks.prefix, *prefix_ids, *line_ids]
    after = [marks.suffix, *suffix_ids]
    if suffix_first:
        before, after = after, before
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        before = [tokenizer.bos_id, *before]

    n_others = max(0, n_ctx - n_around - max(2 * max_tokens, MIN_FREE_TOKENS))
    other_ids, others_are_cut = _other_ids(tokenizer, text.others, n_others)
    return InfillPrompt(
        [*other_ids, *before, *after, marks.middle],
        prefix_is_cut or suffix_is_cut or others_are_cut,
    )


def _other_ids(
    tokenizer: Tokenizer, others: Sequence[tuple[str, str]], limit: int
) -> tuple[list[int], bool]:
    """Return the last tokens of the texts of other files, and whether tokens are missing."""
    marks = tokenizer.infill
    parts: list[list[int]] = []
    if marks.file is not None:
        parts.append([marks.file, *_encode(tokenizer, FILE)])
    n_tokens = sum(map(len, parts))

    n_used = 0
    for name, text in reversed(others):
        if n_tokens >= limit:
            break
        n_used += 1
        if marks.file is not None:
            heading = [marks.file, *_encode(tokenizer, f"{name}\n")]
        else:
            heading = _encode(tokenizer, SNIPPET)
        ids, _ = _last(tokenizer, text, limit)
        parts.append([*heading, *ids])
        n_tokens += len(parts[-1])

    if n_used == len(others) and marks.project is not None:
        parts.append([marks.project, *_encode(tokenizer, PROJECT)])
    ids = [token_id for part in reversed(parts) for token_id in part]
    is_cut = n_used < len(others) or (len(ids) > limit and n_used > 0)
    return ids[max(0, len(ids) - limit) :], is_cut


def _last(tokenizer: Tokenizer, text: str, limit: int) -> tuple[list[int], bool]:
    """Return the last tokens of a text, and whether there are more."""
    n_chars = limit * tokenizer.most_token_bytes + _MARGIN_CHARS
    tail = text
    if len(text) > n_chars:
        # Words end at a line break, so the tokens after it are the same as in the whole text.
        tail = text[-n_chars:].partition("\n")[2] or text[-n_chars:]
    ids = _encode(tokenizer, tail)
    return ids[max(0, len(ids) - limit) :], len(ids) > limit


def _first(tokenizer: Tokenizer, text: str, limit: int) -> tuple[list[int], bool]:
    """Return the first tokens of a text, and whether there are more."""
    ids = _encode(tokenizer, text[: limit * tokenizer.most_token_bytes + _MARGIN_CHARS])
    return ids[:limit], len(ids) > limit


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, bos=False, special=False)

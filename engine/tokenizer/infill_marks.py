"""Tokens that mark the parts of a prompt for filling in the middle.

Source: ggml-org/llama.cpp, src/llama-vocab.cpp: keys of the file, and texts where these are
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.gguf.strings import join_with_zeros

KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "padding": ("fim_pad_token_id",),
    "project": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
"""Keys of a file for each mark; older files have the second one."""
TEXTS = {
    "prefix": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>",
    ),
    "middle": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>",
    ),
    "padding": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "project": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "file": ("<|file_sep|>",),
}  # fmt: skip
"""Texts of each mark in the vocabularies of known models."""


@dataclass(frozen=True)
class InfillMarks:
    """Ids of the marks; None for a mark that the vocabulary lacks.

    Attributes:
        prefix: before the text ahead of the gap.
        suffix: before the text after the gap.
        middle: before the text that fills the gap.
        padding: fills up training texts.
        project: before the name of a project.
        file: before the name of a file.
    """

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    padding: int | None = None
    project: int | None = None
    file: int | None = None

    @property
    def missing(self) -> list[str]:
        """Names of the marks without which nothing can be filled in."""
        needed = {"prefix": self.prefix, "suffix": self.suffix, "middle": self.middle}
        return [name for name, token_id in needed.items() if token_id is None]

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the marks that end a text which fills a gap."""
        ends = (self.padding, self.project, self.file)
        return frozenset(token_id for token_id in ends if token_id is not None)


NO_MARKS = InfillMarks()


def find_marks(
    read_id: Callable[[str], int | None], ids: Mapping[str, int]
) -> tuple[InfillMarks, frozenset[int]]:
    """Find the marks of a vocabulary.

    Args:
        read_id: returns the id in a field of the file; None if there is none.
        ids: ids by the text of the tokens.

    Returns:
        The marks, and the ids that were found by their text.
    """
    marks: dict[str, int] = {}
    by_text: set[int] = set()
    for name, keys in KEYS.items():
        declared = [token_id for key in keys if (token_id := read_id(key)) is not None]
        spelled = [ids[text] for text in TEXTS[name] if text in ids]
        if declared:
            marks[name] = declared[0]
        elif spelled:
            marks[name] = spelled[0]
            by_text.add(spelled[0])
    return InfillMarks(**marks), frozenset(by_text)


def has_infill_marks(metadata: Mapping[str, Any]) -> bool:
    """Return whether the vocabulary in a file's metadata has the marks for filling in."""
    texts = b"\0" + join_with_zeros(metadata.get("tokenizer.ggml.tokens", ())) + b"\0"
    return all(
        any(f"tokenizer.ggml.{key}" in metadata for key in KEYS[name])
        or any(f"\0{text}\0".encode() in texts for text in TEXTS[name])
        for name in ("prefix", "suffix", "middle")
    )

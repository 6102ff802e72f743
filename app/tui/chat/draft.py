"""Drafts: messages that are being written, with large pastes and files folded into chips.

A chip is a short piece of text in the prompt, such as "[pasted 1: 3.1 kB, 42 lines]", that stands
for the whole paste until the message is sent. Its spaces are no-break spaces, so typed text is
never mistaken for a chip.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from app.documents.passages import FileText
from app.documents.pictures import REFERENCE_START, references_in, size_of
from app.documents.read import referred, referred_so_far
from app.text.chips import CHIP, NBSP
from app.text.glyphs import cut
from app.text.record import record

FOLD_FROM_CHARS = 1600
"""Length from which pastes are folded: 20 lines of 80 columns."""
FOLD_FROM_LINES = 20
_PREVIEW_LINES = 3
_PREVIEW_COLUMNS = 64
MAX_PASTE_CHARS = 4_000_000
"""Limit on pastes. No context holds more, and the prompt would become slow."""

_NAME_CHARS = 30
_FILE_CHIP_START = f"[file{NBSP}"
_CHIP_START = re.compile(rf"\[(pasted|file){NBSP}")


@record
class Draft:
    """Text with chips, and the text that each chip stands for."""

    folded_text: str = ""
    """Text of the prompt, with chips."""
    folds: Mapping[str, str] = field(default_factory=dict)
    """Text of each chip."""
    references: frozenset[str] = frozenset()
    """Names after @ signs that were typed or completed. An @ in a paste refers to no file."""

    @property
    def text(self) -> str:
        """The message: the text with every chip replaced by its paste."""
        if not self.folds:
            return self.folded_text
        return CHIP.sub(lambda match: self.folds.get(match[0], match[0]), self.folded_text)

    @property
    def referred(self) -> list[str]:
        """Names of files that the text refers to, whether they exist or not."""
        if not self.references:
            return []
        return [name for name in referred(self.folded_text) if name in self.references]

    @property
    def files_line(self) -> str:
        """Names and sizes of the files in the message; "" if it has none."""
        return ", ".join(
            chip.replace(NBSP, " ").partition(": ")[2][:-1]
            for chip in self.used_folds()
            if chip.startswith(_FILE_CHIP_START)
        )

    @property
    def may_have_pictures(self) -> bool:
        """Whether the draft has a picture, or names a file that may be one."""
        texts = (self.folded_text, *self.folds.values())
        return bool(self.references) or any(REFERENCE_START in text for text in texts)

    def used_folds(self) -> dict[str, str]:
        """Return the folds whose chips are still in the text."""
        spans = chip_spans(self.folded_text, self.folds)
        return {chip: self.folds[chip] for _, _, chip in spans}

    @property
    def documents(self) -> str:
        """Text of the files at the beginning of the message; "" if it has none."""
        end = files_end(self.folded_text, self.folds)
        return Draft(self.folded_text[:end], self.folds).text.strip()

    def with_files(self, files: Sequence[FileText]) -> Draft:
        """Return the draft with more files at its beginning.

        Files are sorted by their texts, so the engine finds the same beginning in its cache.
        """
        end = files_end(self.folded_text, self.folds)
        folds = dict(self.folds)
        chips = [chip for *_, chip in chip_spans(self.folded_text[:end], folds)]
        for file in files:
            chip = write_chip(1 + highest_number(folds), file.text, file.name)
            folds[chip] = without_chips(file.in_message)
            chips.append(chip)
        chips.sort(key=lambda chip: folds[chip])
        beginning = "".join(f"{chip} " for chip in chips)
        return Draft(beginning + self.folded_text[end:], folds, self.references)

    def refold(self, text: str) -> Draft:
        """Return a draft of another text, with the pastes folded that it still contains."""
        folds = {}
        for chip, paste in self.used_folds().items():
            if paste in text:
                text = text.replace(paste, chip, 1)
                folds[chip] = paste
        return Draft(text, folds, self.references)


def draft_of(message: str) -> Draft:
    """Return the draft of a message, with a chip for each picture."""
    folds: dict[str, str] = {}
    pieces = []
    start = 0
    for picture in references_in(message):
        text = message[picture.start : picture.end].rstrip(" ")
        reference = text.split("\n")[2]
        chip = write_chip(1 + len(folds), reference, picture.name)
        folds[chip] = text
        pieces += [message[start : picture.start], chip]
        start = picture.start + len(text)
    return Draft("".join(pieces) + message[start:], folds)


def typed_references(
    references: frozenset[str], old_text: str, new_text: str, key: str
) -> frozenset[str]:
    """Return the references of a text after a key has changed it.

    A reference begins with a typed @, and grows and shrinks by typing. Other changes, such as a key
    within a pasted name, make no reference.

    Args:
        references: those of the old text.
        key: the character that was typed; "" if text was deleted.
    """
    if "@" not in new_text:
        return references
    old_names = Counter(referred_so_far(old_text))
    new_names = Counter(referred_so_far(new_text))
    changed = references.intersection(old_names - new_names)
    added = [
        name
        for name in new_names - old_names
        if _is_variant(name, changed, len(key)) or (not name and key == "@")
    ]
    return references.union(added)


def _is_variant(name: str, originals: Iterable[str], n_inserted: int) -> bool:
    """Return whether a name is an original without some characters, or with some inserted."""
    return any(
        _common_prefix(original, name) + _common_prefix(original[::-1], name[::-1])
        >= len(name) - n_inserted
        for original in originals
    )


def _common_prefix(text_1: str, text_2: str) -> int:
    """Return the length of the common beginning of two texts."""
    for n_chars, (char_1, char_2) in enumerate(zip(text_1, text_2, strict=False)):
        if char_1 != char_2:
            return n_chars
    return min(len(text_1), len(text_2))


def after_chips(text: str, folds: Mapping[str, str]) -> int:
    """Return the position after the chips at the beginning of a text, where a command may be."""
    position = 0
    for start, end, _ in chip_spans(text, folds):
        if text[position:start].strip():
            break
        position = end
    if position:
        return len(text) - len(text[position:].lstrip())
    return 0


def files_end(text: str, folds: Mapping[str, str]) -> int:
    """Return the position after the chips of files at the beginning of a text."""
    position = 0
    for start, end, chip in chip_spans(text, folds):
        if start != position or not chip.startswith(_FILE_CHIP_START):
            break
        position = end + text.startswith(" ", end)
    return position


def chip_spans(line: str, folds: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and text of every chip in a line."""
    if not folds:
        return
    for match in CHIP.finditer(line):
        if match[0] in folds:
            yield match.start(), match.end(), match[0]


def is_large(text: str) -> bool:
    """Return whether a paste is folded."""
    return len(text) >= FOLD_FROM_CHARS or text.count("\n") + 1 >= FOLD_FROM_LINES


def write_chip(number: int, text: str, file_name: str = "") -> str:
    """Return the chip of a paste or a file.

    For example "[pasted 1: 3.1 kB, 42 lines]" or "[file 1: notes.txt, 3.1 kB, 42 lines]".
    """
    n_lines = text.count("\n") + (not text.endswith("\n"))
    lines = "1 line" if n_lines == 1 else f"{n_lines:,} lines"
    size = _size(len(text.encode("utf-8", "replace")))
    chip = f"[pasted {number}: {size}, {lines}]"
    if file_name:
        extent = f"{size}, {lines}"
        if (picture_size := size_of(text)) is not None:
            extent = f"{picture_size[0]} x {picture_size[1]} pixels"
        clean_name = re.sub(r"[\[\]\n]", "_", file_name)[:_NAME_CHARS]
        chip = f"[file {number}: {clean_name}, {extent}]"
    return chip.replace(" ", NBSP)


def with_preview(text: str, folded: str) -> str:
    """Return a folded text with the first lines of its first paste below the chip.

    Where a later paste begins is not saved, so later ones have no such lines.

    Args:
        text: the whole message.
        folded: the message with chips.
    """
    match = CHIP.search(folded)
    if match is None or match[0].startswith(_FILE_CHIP_START):
        return folded
    start = match.start()
    beginning = text[start : start + _PREVIEW_LINES * 1000]
    lines = [line for line in beginning.splitlines() if line.strip()][:_PREVIEW_LINES]
    preview = "".join(f"\n  {cut(line.expandtabs(4), _PREVIEW_COLUMNS)}" for line in lines)
    rest = folded[match.end() :].strip()
    if rest:
        rest = f"\n{rest}"
    return f"{folded[: match.end()]}{preview}{rest}"


def without_chips(text: str) -> str:
    """Return a text in which nothing looks like a chip; a copy of the screen may contain some."""
    return _CHIP_START.sub(r"[\1 ", text)


def highest_number(chips: Iterable[str]) -> int:
    """Return the largest number of the chips; 0 if there are none."""
    return max((int(match[1]) for chip in chips if (match := CHIP.fullmatch(chip))), default=0)


def _size(n_bytes: int) -> str:
    for unit, divisor in (("MB", 1_000_000), ("kB", 1000)):
        if n_bytes >= divisor:
            return f"{n_bytes / divisor:.1f} {unit}"
    return f"{n_bytes} B"

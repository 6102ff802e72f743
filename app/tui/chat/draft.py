"""A message in the making: what is in the prompt, and the large pastes that are folded in it.

A fold is a short piece of text, a *chip*, that stands for the whole paste until the message is
sent. Chips are written with no-break spaces: they look like any text, and nothing that is typed is
mistaken for one. Plain values, no widget.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from app.documents.passages import FileText
from app.documents.read import referred, referred_so_far
from app.text.chips import CHIP, NBSP
from app.text.record import record

FOLD_FROM_CHARS = 512
"""Pastes of at least this many characters are folded: a prompt of ten lines on a small screen holds
hardly more."""
FOLD_FROM_LINES = 8
MAX_PASTE_CHARS = 4_000_000
"""Larger pastes are taken nowhere: no context holds them, and the prompt would stop."""

_NAME_CHARS = 30
_FILE = f"[file{NBSP}"
_OPENING = re.compile(rf"\[(pasted|file){NBSP}")


@record
class Draft:
    """Text with chips, and the text that each chip stands for."""

    shown: str = ""
    folds: Mapping[str, str] = field(default_factory=dict)
    references: frozenset[str] = frozenset()
    """What was typed or completed after @ signs. Any other @ is text, however it came here: a paste
    reads no file."""

    @property
    def text(self) -> str:
        """The message itself: every chip replaced by its paste, once; pastes are not looked
        into."""
        if not self.folds:
            return self.shown
        return CHIP.sub(lambda match: self.folds.get(match[0], match[0]), self.shown)

    @property
    def referred(self) -> list[str]:
        """The files that the text names, whether they exist or not."""
        if self.references:
            return [name for name in referred(self.shown) if name in self.references]
        return []

    @property
    def files_line(self) -> str:
        """Names and sizes of the files that go with the message, "" without any."""
        return ", ".join(
            chip.replace(NBSP, " ").partition(": ")[2][:-1]
            for chip in self.used_folds()
            if chip.startswith(_FILE)
        )

    def used_folds(self) -> dict[str, str]:
        """Return the folds whose chip is still there."""
        return {chip: self.folds[chip] for _, _, chip in chip_spans(self.shown, self.folds)}

    @property
    def documents(self) -> str:
        """The beginning of the message: the texts of its files, which stay while the question is
        typed; "" for none."""
        return Draft(self.shown[: files_end(self.shown, self.folds)], self.folds).text.strip()

    def with_files(self, files: Sequence[FileText]) -> Draft:
        """Return the draft with more files at its beginning.

        They are ordered by their texts, which begin with their names: what was read of them once
        serves again.
        """
        at = files_end(self.shown, self.folds)
        folds = dict(self.folds)
        chips = [chip for *_, chip in chip_spans(self.shown[:at], folds)]
        for file in files:
            chip = write_chip(1 + highest_number(folds), file.text, file.name)
            folds[chip] = without_chips(file.in_message)
            chips.append(chip)
        chips.sort(key=lambda chip: folds[chip])
        return Draft(
            "".join(f"{chip} " for chip in chips) + self.shown[at:], folds, self.references
        )

    def refold(self, text: str) -> Draft:
        """Return a draft of another text, with the same pastes folded where it still contains them
        whole."""
        folds = {}
        for chip, paste in self.used_folds().items():
            before, found, after = text.partition(paste)
            if found:
                text = f"{before}{chip}{after}"
                folds[chip] = paste
        return Draft(text, folds, self.references)


def typed_references(typed: frozenset[str], before: str, after: str, key: str) -> frozenset[str]:
    """Return the references that are typed once a key has changed a text: one of those grew or
    shrank, or one begins.

    What else an edit brings about, a character typed within a pasted reference for instance, makes
    none.
    """
    if "@" not in after:
        return typed
    old = Counter(referred_so_far(before))
    new = Counter(referred_so_far(after))
    came = new - old
    left = typed.intersection(old - new)
    return typed.union(
        name for name in came if _is_from(name, left, len(key)) or (not name and key == "@")
    )


def _is_from(name: str, typed: Iterable[str], n_more: int) -> bool:
    """Whether a name is one of others, something of it left out, or so many characters put in."""
    return any(
        _n_same(one, name) + _n_same(one[::-1], name[::-1]) >= len(name) - n_more for one in typed
    )


def _n_same(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def after_chips(shown: str, folds: Mapping[str, str]) -> int:
    """Return where what is typed begins after the chips that a text opens with: a command may be
    there."""
    at = 0
    for start, end, _ in chip_spans(shown, folds):
        if shown[at:start].strip():
            break
        at = end
    if at:
        return len(shown) - len(shown[at:].lstrip())
    return 0


def files_end(shown: str, folds: Mapping[str, str]) -> int:
    """Return where the files end that a text opens with, and the space after each."""
    at = 0
    for start, end, chip in chip_spans(shown, folds):
        if start != at or not chip.startswith(_FILE):
            break
        at = end + shown.startswith(" ", end)
    return at


def chip_spans(line: str, folds: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and text of every chip in a line."""
    if not folds:
        return
    for match in CHIP.finditer(line):
        if match[0] in folds:
            yield match.start(), match.end(), match[0]


def is_large(text: str) -> bool:
    """Whether a paste is folded rather than shown."""
    return len(text) >= FOLD_FROM_CHARS or text.count("\n") + 1 >= FOLD_FROM_LINES


def write_chip(number: int, text: str, name: str = "") -> str:
    """Write the chip for a paste, "[pasted 1: 3.1 kB, 42 lines]", or for a file, "[file 1:
    notes.txt, 3.1 kB, ...]"."""
    n_lines = text.count("\n") + (not text.endswith("\n"))
    if n_lines == 1:
        lines = "1 line"
    else:
        lines = f"{n_lines:,} lines"
    if name:
        name = re.sub(r"[\[\]\n]", "_", name)[:_NAME_CHARS] + ", "
    else:
        name = ""
    words = (
        f"[{'file' if name else 'pasted'} {number}: "
        f"{name}{_size(len(text.encode('utf-8', 'replace')))}, {lines}]"
    )
    return words.replace(" ", NBSP)


def without_chips(text: str) -> str:
    """Return pasted text in which nothing passes for a chip: a copy of the screen may hold one."""
    return _OPENING.sub(r"[\1 ", text)


def highest_number(chips: Iterable[str]) -> int:
    """Return the largest number among the chips, 0 without any."""
    return max((int(match[1]) for chip in chips if (match := CHIP.fullmatch(chip))), default=0)


def _size(n_bytes: int) -> str:
    for unit, divisor in (("MB", 1_000_000), ("kB", 1000)):
        if n_bytes >= divisor:
            return f"{n_bytes / divisor:.1f} {unit}"
    return f"{n_bytes} B"

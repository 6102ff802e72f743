"""Numbers of paragraphs in Word documents, from lists, levels and paragraph styles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from app.documents.list_numbers import LARGEST, written_number
from app.documents.xml_part import Attributes, parse_part

_LEVELS = 9
_STYLES = {
    "lowerLetter": "letter",
    "upperLetter": "LETTER",
    "lowerRoman": "roman",
    "upperRoman": "ROMAN",
    "decimalZero": "two-digit",
    "ordinal": "ordinal",
}
"""Styles of list numbers by their names in Word. Other numbered styles are written as digits."""
_UNNUMBERED = frozenset(("bullet", "none"))
_PLACEHOLDER = re.compile(r"%([1-9])")
_MOST_BASES = 20
_MOST_TEXT_CHARS = 100


class _Level:
    """Numbering of a list level."""

    def __init__(self) -> None:
        self.start = 1
        self.style = "decimal"
        self.text = ""
        self.restart: int | None = None
        """Number of the level (from 1) after which this level restarts; None for any higher
        level.
        """
        self.is_legal = False
        """Whether the numbers of all levels are written as digits."""
        self.paragraph_style = ""


class _WordList:
    """An abstract list: levels, or the name of the style that defines them."""

    def __init__(self) -> None:
        self.levels: dict[int, _Level] = {}
        self.style_link = ""
        """Name of the numbering style that this list defines."""
        self.linked_style = ""
        """Name of the numbering style that this list uses."""


class _Instance:
    """A list in use: an abstract list with its own changes."""

    def __init__(self) -> None:
        self.list_id = ""
        self.levels: dict[int, _Level] = {}
        self.starts: dict[int, int] = {}


class _Style:
    """List and level of a paragraph style: "" for no list, None for no level."""

    def __init__(self) -> None:
        self.base = ""
        self.instance_id = ""
        self.level: int | None = None


class ParagraphNumbers:
    """Counts the paragraphs of a document's lists in reading order.

    Args:
        numbering: the numbering part; empty if there is none.
        styles: the styles part; empty if there is none.

    Raises:
        Refusal: a part declares entities.
        ExpatError: a part is damaged.
    """

    def __init__(self, numbering: bytes = b"", styles: bytes = b"") -> None:
        self._lists: dict[str, _WordList] = {}
        self._instances: dict[str, _Instance] = {}
        self._styles: dict[str, _Style] = {}
        self._counts: dict[str, dict[int, int]] = {}
        """Number of the last paragraph by list and level."""
        self._started: set[tuple[str, int]] = set()
        """Instances and levels whose start number was used."""
        self._default_style = ""
        if numbering:
            _NumberingReader(self._lists, self._instances).read(numbering)
        if styles:
            self._default_style = _read_styles(styles, self._styles)

    def next_number(self, style: str, instance_id: str, level: int | None) -> str:
        """Count a paragraph and return its number with a space after it; "" if it has none.

        Args:
            style: name of the paragraph style; "" for the default style.
            instance_id: list of the paragraph; "" if it names none, "0" to leave the style's list.
            level: level that the paragraph names.
        """
        if not self._instances:
            return ""
        style = style or self._default_style
        if not instance_id:
            instance_id, style_level = self._list_of_style(style)
            if level is None:
                level = style_level
        instance = self._instances.get(instance_id)
        if instance is None:
            return ""
        abstract_id, levels = self._levels_of(instance)
        if level is None:
            level = next(
                (
                    index
                    for index, list_level in levels.items()
                    if style and list_level.paragraph_style == style
                ),
                0,
            )
        if not 0 <= level < _LEVELS or level not in levels:
            return ""
        self._count(instance_id, instance, abstract_id, levels, level)
        return self._written(levels, self._counts[abstract_id], level)

    def _list_of_style(self, name: str) -> tuple[str, int | None]:
        level = None
        for _ in range(_MOST_BASES):
            style = self._styles.get(name)
            if style is None:
                break
            if level is None:
                level = style.level
            if style.instance_id:
                return style.instance_id, level
            name = style.base
        return "", None

    def _levels_of(self, instance: _Instance) -> tuple[str, dict[int, _Level]]:
        """Return the abstract list of an instance by id, and its levels with the instance's
        changes.
        """
        abstract_id = instance.list_id
        abstract = self._lists.get(abstract_id, _WordList())
        if not abstract.levels and abstract.linked_style:
            for candidate_id, candidate in self._lists.items():
                if candidate.style_link == abstract.linked_style:
                    abstract_id = candidate_id
                    abstract = candidate
                    break
        return abstract_id, {**abstract.levels, **instance.levels}

    def _count(
        self,
        instance_id: str,
        instance: _Instance,
        abstract_id: str,
        levels: dict[int, _Level],
        level: int,
    ) -> None:
        counts = self._counts.setdefault(abstract_id, {})
        if level in instance.starts and (instance_id, level) not in self._started:
            counts[level] = instance.starts[level]
            self._started.add((instance_id, level))
        elif level in counts:
            counts[level] += 1
        else:
            counts[level] = levels[level].start
        for upper in range(level):
            if upper in levels:
                counts.setdefault(upper, instance.starts.get(upper, levels[upper].start))
        for lower in range(level + 1, _LEVELS):
            if lower in levels:
                restart = levels[lower].restart
            else:
                restart = None
            if restart is None or 0 < level + 1 <= restart:
                counts.pop(lower, None)

    @staticmethod
    def _written(levels: dict[int, _Level], counts: dict[int, int], level: int) -> str:
        list_level = levels[level]
        if list_level.style in _UNNUMBERED:
            return ""

        def number(match: re.Match[str]) -> str:
            index = int(match[1]) - 1
            if index not in levels or index > level:
                return ""
            if list_level.is_legal:
                style = "decimal"
            else:
                style = _STYLES.get(levels[index].style, "decimal")
            return written_number(counts.get(index, levels[index].start), style)

        text = _PLACEHOLDER.sub(number, list_level.text[:_MOST_TEXT_CHARS]).strip()
        if text:
            return f"{text} "
        return ""


class _NumberingReader:
    """Reads the numbering part."""

    def __init__(self, lists: dict[str, _WordList], instances: dict[str, _Instance]) -> None:
        self._lists = lists
        self._instances = instances
        self._open: list[str] = []
        self._list = _WordList()
        self._instance = _Instance()
        self._override = 0
        self._level = _Level()
        self._is_in_instance = False

    def read(self, raw: bytes) -> None:
        """Read the part."""
        parse_part(raw, self._begin, self._end)

    def _begin(self, name: str, attributes: Attributes) -> None:
        self._open.append(name)
        value = attributes.get("val", "")
        if len(self._open) > 1:
            parent = self._open[-2]
        else:
            parent = ""
        if name == "abstractNum":
            self._list = self._lists[attributes.get("abstractNumId", "")] = _WordList()
            self._is_in_instance = False
        elif name == "num":
            self._instance = self._instances[attributes.get("numId", "")] = _Instance()
            self._is_in_instance = True
        elif name == "lvl":
            self._begin_level(_index(attributes.get("ilvl", "")))
        elif name == "lvlOverride":
            self._override = _index(attributes.get("ilvl", ""))
        elif parent == "lvlOverride" and name == "startOverride":
            self._instance.starts[self._override] = _start(value)
        elif parent == "num" and name == "abstractNumId":
            self._instance.list_id = value
        elif parent == "abstractNum" and name == "styleLink":
            self._list.style_link = value
        elif parent == "abstractNum" and name == "numStyleLink":
            self._list.linked_style = value
        elif parent == "lvl" or (name == "numFmt" and "lvl" in self._open):
            self._set(name, attributes)

    def _begin_level(self, index: int) -> None:
        self._level = _Level()
        if self._is_in_instance:
            levels = self._instance.levels
        else:
            levels = self._list.levels
        if 0 <= index < _LEVELS:
            levels[index] = self._level

    def _set(self, name: str, attributes: Attributes) -> None:
        value = attributes.get("val", "")
        if name == "start":
            self._level.start = _start(value)
        elif name == "numFmt":
            self._level.style = value
        elif name == "lvlText":
            self._level.text = value
        elif name == "lvlRestart":
            self._level.restart = _index(value)
        elif name == "isLgl":
            self._level.is_legal = value not in ("0", "false", "off")
        elif name == "pStyle":
            self._level.paragraph_style = value

    def _end(self, name: str) -> None:
        self._open.pop()


def _read_styles(raw: bytes, styles: dict[str, _Style]) -> str:
    """Read the styles part and return the name of the default paragraph style."""
    style = _Style()
    default = ""
    open_names: Counter[str] = Counter()

    def begin(name: str, attributes: Attributes) -> None:
        nonlocal style, default
        open_names[name] += 1
        value = attributes.get("val", "")
        if name == "style":
            style = _Style()
            if attributes.get("type") == "paragraph":
                styles[attributes.get("styleId", "")] = style
                if attributes.get("default") in ("1", "true", "on"):
                    default = attributes.get("styleId", "")
        elif open_names["pPrChange"]:
            pass  # properties before a change
        elif name == "basedOn":
            style.base = value
        elif open_names["numPr"] and name == "numId":
            style.instance_id = value
        elif open_names["numPr"] and name == "ilvl":
            style.level = _index(value)

    def end(name: str) -> None:
        open_names[name] -= 1

    parse_part(raw, begin, end)
    return default


def _index(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,2}", text):
        return int(text)
    return -1


def _start(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,10}", text):
        number = int(text)
    else:
        number = 1
    return min(number, LARGEST)


NextNumber = Callable[[str, str, "int | None"], str]
"""Function that counts a paragraph and returns its number: ``ParagraphNumbers.next_number``."""

"""Visible text of web pages.

This is a scanner of its own because the standard library's takes quadratic time for unclosed
markup.
"""

from __future__ import annotations

import html
import re
from typing import BinaryIO

from app.documents.encoding import decoded
from app.documents.list_numbers import LARGEST, written_number
from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText, bounded

_RAW = frozenset(("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"))
"""Elements in which ``<`` only begins their end tag."""
_UNSHOWN = frozenset(
    (
        "script",
        "style",
        "template",
        "noscript",
        "svg",
        "iframe",
        "noembed",
        "noframes",
        "object",
        "datalist",
    )
)
_EMPTY = frozenset(
    (
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    )
)
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|caption|d[dlt]|details|div|fieldset|figcaption|figure"
    "|footer|form|h[1-6]|header|hr|legend|li|main|nav|[ou]l|option|p|pre|section|summary|table"
    "|textarea|title|tr"
)
_MARKUP = re.compile(r"<[A-Za-z!?/]")
_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_QUOTE_OR_END = re.compile(r">|=\s*([\"'])")
_HIDDEN = re.compile(
    r"\s(?:hidden(?=[\s=/]|$)|style\s?=\s?[\"']?[^\"']{0,200}?display\s?:\s?none)", re.I
)
_ATTRIBUTES_CHARS = 4096
"""Number of characters of a tag that are searched for attributes."""
_ATTRIBUTE = r"(?:^|\s)%s\s?=\s?(?:\"([^\"]{0,1000})\"|'([^']{0,1000})'|([^\s\"'>]{1,1000}))"
_ATTRIBUTES = {
    name: re.compile(_ATTRIBUTE % name, re.I)
    for name in ("start", "type", "value", "style", "alt", "href")
}
_REVERSED = re.compile(r"(?:^|\s)reversed(?=[\s=/]|$)", re.I)
_LIST_STYLE = re.compile(r"list-style(?:-type)?\s?:\s?([a-z-]{1,30})", re.I)
_STYLES = {
    "a": "letter",
    "A": "LETTER",
    "i": "roman",
    "I": "ROMAN",
    "lower-alpha": "letter",
    "lower-latin": "letter",
    "upper-alpha": "LETTER",
    "upper-latin": "LETTER",
    "lower-roman": "roman",
    "upper-roman": "ROMAN",
    "lower-greek": "greek",
    "decimal-leading-zero": "two-digit",
}
"""Styles of list numbers by their names in HTML and CSS."""
_UNNUMBERED = frozenset(("none", "disc", "circle", "square"))
_LIST_TAG = re.compile(r"<(/?)(ol|ul|menu|li)(?=[\s/>])", re.I)
_COUNTED_CHARS = 1 << 16
"""Number of characters that are searched for the items of a list that counts down."""
_MOST_LISTS = 100
"""Limit on nested lists; deeper ones have no numbers."""
_WEB_ADDRESS = re.compile(r"https?://[^\s<>]{1,200}", re.I)
_OPEN_ENDED = frozenset(("dd", "dt", "li", "option", "p", "td", "th", "tr"))
"""Elements whose end tag may be missing."""
_OUTER = frozenset(("body", "div", "dl", "html", "ol", "section", "select", "table", "ul"))
_HUGE = re.compile(r"&#(?:[xX]0*[0-9A-Fa-f]{7,}|0*[0-9]{8,});?")
"""Number of no character; parsing it would take quadratic time."""


class _PageList:
    """An open list, with the next number, the step and the style.

    An unnumbered list has no style.
    """

    def __init__(self, number: int = 0, step: int = 0, style: str = "") -> None:
        self.number = number
        self.step = step
        self.style = style


class _Page:
    """Scans a page from beginning to end, with white space as in a browser."""

    def __init__(self, source: str, text: BoundedText) -> None:
        self.text = text
        self._source = source
        self._at = 0
        self._hidden_tag = ""
        self._depth = 0
        self._pre = 0
        self._lists: list[_PageList] = []
        self._item_number = ""
        """Number of a list item whose text has not begun."""
        self._address = ""
        """Address of the open link in a paragraph."""
        self._is_in_paragraph = False

    def read(self) -> None:
        """Add the visible text of the page."""
        while self._at < len(self._source):
            begin = _MARKUP.search(self._source, self._at)
            self._data(self._source[self._at : begin.start() if begin else len(self._source)])
            if begin is None:
                break
            self._at = begin.start()
            self._markup()

    def _markup(self) -> None:
        """Skip or handle the markup at the position.

        Unclosed markup extends to the end of the page.
        """
        position = self._at
        source = self._source
        if source.startswith("<!--", position):
            short = next(
                (end for end in ("<!-->", "<!--->") if source.startswith(end, position)), ""
            )
            if short:
                self._at = position + len(short)
            else:
                self._at = self._after("-->", position + 4)
        elif source.startswith("<![CDATA[", position):
            end = source.find("]]>", position)
            self._data(source[position + 9 : end if end >= 0 else len(source)], is_literal=True)
            if end >= 0:
                self._at = end + 3
            else:
                self._at = len(source)
        elif source.startswith(("<!", "<?"), position):
            self._at = self._after(">", position)
        elif source.startswith("</", position):
            name = _NAME.match(source, position + 2)
            self._at = self._after(">", position)
            if name:
                self._end(name[0].lower())
        else:
            name = _NAME.match(source, position + 1)
            assert name is not None
            self._tag(name)

    def _tag(self, name: re.Match[str]) -> None:
        tag = name[0].lower()
        end = self._end_of_tag(name.end())
        attributes = self._source[name.end() : end]
        self._at = end + 1
        if self._hidden_tag in _OPEN_ENDED and (
            tag == self._hidden_tag or (self._hidden_tag == "p" and _BLOCKS.fullmatch(tag))
        ):
            self._hidden_tag = ""
        if self._hidden_tag:
            self._depth += tag == self._hidden_tag and not attributes.endswith("/")
        elif (
            tag not in _EMPTY and not attributes.endswith("/") and self._is_hidden(tag, attributes)
        ):
            self._hidden_tag = tag
            self._depth = 1
        self._pre += tag == "pre"
        self._break(tag)
        if not self._hidden_tag:
            self._begin(tag, attributes[:_ATTRIBUTES_CHARS])
        if tag in _RAW and not attributes.endswith("/"):
            close = re.compile(rf"</{tag}(?=[\s/>])", re.I).search(self._source, self._at)
            if close:
                stop = close.start()
            else:
                stop = len(self._source)
            self._data(self._source[self._at : stop])
            self._at = stop

    def _begin(self, tag: str, attributes: str) -> None:
        """Handle a visible element: list, item, link or picture."""
        if tag == "ol":
            self._open_list(attributes)
        elif tag in ("ul", "menu"):
            self._lists.append(_PageList())
        elif tag == "li" and self._lists:
            self._number(attributes)
        elif tag == "p":
            self._is_in_paragraph = True
        elif tag == "a" and self._is_in_paragraph:
            address = _attribute(attributes, "href")
            if _WEB_ADDRESS.fullmatch(address):
                self._address = address
            else:
                self._address = ""
        elif tag == "img" and (description := _attribute(attributes, "alt").strip()):
            self._data(f"[image: {description}]")

    def _open_list(self, attributes: str) -> None:
        if len(self._lists) >= _MOST_LISTS:
            self._lists.append(_PageList())
            return
        name = _attribute(attributes, "type")
        css = _LIST_STYLE.search(_attribute(attributes, "style"))
        if css is not None:
            name = css[1].lower()
        if name in _UNNUMBERED:
            style = ""
        else:
            style = _STYLES.get(name, "decimal")
        if _REVERSED.search(attributes):
            step = -1
        else:
            step = 1
        start = _whole_number(_attribute(attributes, "start"))
        if start is None:
            if step > 0:
                start = 1
            else:
                start = self._n_items()
        self._lists.append(_PageList(start, step, style))

    def _n_items(self) -> int:
        """Return the number of items of the list that has just begun."""
        n_items = 0
        depth = 1
        for mark in _LIST_TAG.finditer(self._source, self._at, self._at + _COUNTED_CHARS):
            is_item = mark[2].lower() == "li"
            if is_item:
                n_items += depth == 1 and not mark[1]
            else:
                if mark[1]:
                    depth += -1
                else:
                    depth += 1
            if not depth:
                break
        return n_items

    def _number(self, attributes: str) -> None:
        items = self._lists[-1]
        value = _whole_number(_attribute(attributes, "value"))
        if value is not None:
            items.number = value
        if items.style:
            self._item_number += f"{written_number(items.number, items.style)}. "
        items.number += items.step

    @staticmethod
    def _is_hidden(tag: str, attributes: str) -> bool:
        return tag in _UNSHOWN or bool(
            attributes and _HIDDEN.search(attributes[:_ATTRIBUTES_CHARS])
        )

    def _end_of_tag(self, position: int) -> int:
        """Return the position of the ``>`` of a tag, ignoring quoted ones."""
        source = self._source
        while mark := _QUOTE_OR_END.search(source, position):
            if not mark[1]:
                return mark.start()
            close = source.find(mark[1], mark.end())
            if close < 0:  # a forgotten quote must not hide the rest of the page
                end = source.find(">", mark.end())
                if end >= 0:
                    return end
                return len(source)
            position = close + 1
        return len(source)

    def _end(self, tag: str) -> None:
        if tag == self._hidden_tag:
            self._depth -= 1
        if not self._depth or (self._hidden_tag in _OPEN_ENDED and tag in _OUTER):
            self._hidden_tag = ""
        self._pre = max(0, self._pre - (tag == "pre"))
        if not self._hidden_tag:
            self._close(tag)
        self._break(tag)

    def _close(self, tag: str) -> None:
        if tag in ("ol", "ul", "menu") and self._lists:
            self._lists.pop()
            self._item_number = ""
        elif tag == "li":
            self._item_number = ""
        elif tag == "a" and self._address:
            self._data(f" ({self._address})", is_literal=True)
            self._address = ""
        elif tag == "p":
            self._is_in_paragraph = False

    def _data(self, data: str, is_literal: bool = False) -> None:
        if self._hidden_tag or not data:
            return
        if not is_literal:
            data = html.unescape(_HUGE.sub("\ufffd", data))
        if self._item_number and not data.isspace():
            data = self._item_number + data.lstrip()
            self._item_number = ""
        self.text.add(data if self._pre else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if not self._hidden_tag and _BLOCKS.fullmatch(tag):
            self.text.add("\n")
        elif not self._hidden_tag and tag in ("td", "th"):
            self.text.add("\t")

    def _after(self, mark: str, position: int) -> int:
        end = self._source.find(mark, position)
        if end >= 0:
            return end + len(mark)
        return len(self._source)


def _attribute(attributes: str, name: str) -> str:
    """Return the value of an attribute; "" if it is missing or too long."""
    match = _ATTRIBUTES[name].search(attributes)
    if match is None:
        return ""
    return html.unescape(match[1] or match[2] or match[3] or "")


def _whole_number(text: str) -> int | None:
    """Return a whole number within the limit of list numbers; None for anything else."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,10}\s*", text):
        return None
    number = int(text)
    if abs(number) < LARGEST:
        return number
    return None


def html_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the visible text of a page."""
    text = text or BoundedText()
    add_page(decoded(bounded(file, MAX_SOURCE_BYTES, "the page"), "the page"), text)
    return without_gaps(text.joined())


def add_page(source: str, text: BoundedText) -> None:
    """Add the visible text of a page."""
    _Page(source, text).read()


def without_gaps(text: str) -> str:
    """Return a text without spaces at the ends of lines, and with one empty line in a row."""
    lines = (line.strip(" ") for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))

"""What a web page shows. A scanner of our own: the standard library's takes time by the square of what is left open."""

from __future__ import annotations

import html
import re
from typing import BinaryIO

from app.documents.encoding import decoded
from app.documents.text_file import MAX_FILE_BYTES, BoundedText, bounded

_RAW = frozenset(("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"))
"""Elements in which a ``<`` begins nothing but their end."""
_UNSHOWN = frozenset(
    ("script", "style", "template", "noscript", "svg", "iframe", "noembed", "noframes", "object", "datalist")
)
_EMPTY = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6]|header"
    "|hr|legend|li|main|nav|[ou]l|option|p|pre|section|summary|table|textarea|title|tr"
)
_MARKUP = re.compile(r"<[A-Za-z!?/]")
_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_QUOTE = re.compile(r"=\s*([\"'])")
_HIDDEN = re.compile(r"\s(?:hidden(?=[\s=/]|$)|style\s?=\s?[\"']?[^\"']{0,200}?display\s?:\s?none)", re.I)
_ATTRIBUTES_CHARS = 4096
"""So much of a tag is searched for whether it is hidden."""
_OPEN_ENDED = frozenset(("dd", "dt", "li", "option", "p", "td", "th", "tr"))
"""Elements whose end may be left out."""
_OUTER = frozenset(("body", "div", "dl", "html", "ol", "section", "select", "table", "ul"))
_HUGE = re.compile(r"&#(?:[xX]0*[0-9A-Fa-f]{7,}|0*[0-9]{8,});?")
"""A character by a number that none has, which would take time by the square of its figures."""


class _Page:
    """Takes the page apart from its beginning to its end; white space is as a browser shows it."""

    def __init__(self, source: str) -> None:
        self.text = BoundedText()
        self._source, self._at = source, 0
        self._unshown, self._depth, self._pre = "", 0, 0

    def read(self) -> str:
        """Return the words of the page."""
        while self._at < len(self._source):
            begin = _MARKUP.search(self._source, self._at)
            self._data(self._source[self._at : begin.start() if begin else len(self._source)])
            if begin is None:
                break
            self._at = begin.start()
            self._markup()
        return self.text.joined()

    def _markup(self) -> None:
        """Pass over what begins with a ``<``. What has no end goes to the end of the page, as in a browser."""
        at, source = self._at, self._source
        if source.startswith("<!--", at):
            short = next((end for end in ("<!-->", "<!--->") if source.startswith(end, at)), "")
            self._at = at + len(short) if short else self._after("-->", at + 4)
        elif source.startswith("<![CDATA[", at):
            end = source.find("]]>", at)
            self._data(source[at + 9 : end if end >= 0 else len(source)], is_literal=True)
            self._at = end + 3 if end >= 0 else len(source)
        elif source.startswith(("<!", "<?"), at):
            self._at = self._after(">", at)
        elif source.startswith("</", at):
            name = _NAME.match(source, at + 2)
            self._at = self._after(">", at)
            if name:
                self._end(name[0].lower())
        else:
            name = _NAME.match(source, at + 1)
            assert name is not None
            self._tag(name)

    def _tag(self, name: re.Match[str]) -> None:
        tag, end = name[0].lower(), self._end_of_tag(name.end())
        attributes = self._source[name.end() : end]
        self._at = end + 1
        if self._unshown in _OPEN_ENDED and (tag == self._unshown or (self._unshown == "p" and _BLOCKS.fullmatch(tag))):
            self._unshown = ""
        if self._unshown:
            self._depth += tag == self._unshown and not attributes.endswith("/")
        elif tag not in _EMPTY and not attributes.endswith("/") and self._is_hidden(tag, attributes):
            self._unshown, self._depth = tag, 1
        self._pre += tag == "pre"
        self._break(tag)
        if tag in _RAW and not attributes.endswith("/"):
            close = re.compile(rf"</{tag}(?=[\s/>])", re.I).search(self._source, self._at)
            stop = close.start() if close else len(self._source)
            self._data(self._source[self._at : stop])
            self._at = stop

    @staticmethod
    def _is_hidden(tag: str, attributes: str) -> bool:
        return tag in _UNSHOWN or bool(attributes and _HIDDEN.search(attributes[:_ATTRIBUTES_CHARS]))

    def _end_of_tag(self, at: int) -> int:
        """Return where the ``>`` of a tag is; one within quotes is none."""
        source = self._source
        while True:
            end = source.find(">", at)
            if end < 0:
                return len(source)
            quote = _QUOTE.search(source, at, end)
            if quote is None:
                return end
            close = source.find(quote[1], quote.end())
            if close < 0:
                return end  # a forgotten quote does not hide the rest of the page
            at = close + 1

    def _end(self, tag: str) -> None:
        if tag == self._unshown:
            self._depth -= 1
        if not self._depth or (self._unshown in _OPEN_ENDED and tag in _OUTER):
            self._unshown = ""
        self._pre = max(0, self._pre - (tag == "pre"))
        self._break(tag)

    def _data(self, data: str, is_literal: bool = False) -> None:
        if self._unshown or not data:
            return
        if not is_literal:
            data = html.unescape(_HUGE.sub("\ufffd", data))
        self.text.add(data if self._pre else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if not self._unshown and _BLOCKS.fullmatch(tag):
            self.text.add("\n")
        elif not self._unshown and tag in ("td", "th"):
            self.text.add("\t")

    def _after(self, mark: str, at: int) -> int:
        end = self._source.find(mark, at)
        return end + len(mark) if end >= 0 else len(self._source)


def html_text(file: BinaryIO) -> str:
    """Return what a page shows."""
    page = _Page(decoded(bounded(file, MAX_FILE_BYTES, "the page"), "the page"))
    lines = (line.strip(" ") for line in page.read().split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))

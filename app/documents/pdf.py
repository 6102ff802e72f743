"""Text of PDF pages: printed text, filled form fields and comments."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from app.documents.text_file import BoundedText
from app.program.refusals import Refusal
from app.text.figures import counted

if TYPE_CHECKING:
    from pypdf import PageObject

_CUT_WORD = re.compile(r"([^\W\d_]{2,})(-\n|\u00ad\n?)([^\W\d_]+)([^\w\s]*)([ \n]?)")
"""A word that is, or may be, cut at the end of a line."""
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_MOST_ANNOTATIONS = 2000
_MOST_PARENTS = 10
_MOST_FONTS = 50
_LEAST_SHARE_OF_LETTERS = 0.7
_MOST_NAMED_PAGES = 5
_EMPTY_PAGE = "(no text, perhaps a picture)"


def pdf_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of all pages, each after a line with its number.

    Raises:
        Refusal: the file is locked or has no text.
    """
    from pypdf import PdfReader

    logging.disable()
    try:
        reader = PdfReader(file)
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except RuntimeError:  # pypdf does not support the encryption
        raise Refusal("is encrypted in an unknown way (save it without encryption)") from None
    if is_locked:
        raise Refusal("is locked by a password (save it without one)")
    text = text or BoundedText()
    empty_pages: list[int] = []
    unknown_pages: list[int] = []
    last_error = None
    n_pages = 0
    for n_pages, page in enumerate(reader.pages, 1):
        words = ""
        try:
            words = page.extract_text().strip()
            if _has_unknown_letters(page):
                unknown_pages.append(n_pages)
                if not _is_likely_text(words):
                    words = ""
            words = "\n".join(filter(None, [words, *_annotations(page)]))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # pypdf raises many types; the other pages may be sound
            last_error = error
        if not words:
            empty_pages.append(n_pages)
        text.add(f"[page {n_pages}]\n{words or _EMPTY_PAGE}\n")
    if len(empty_pages) == n_pages:
        if unknown_pages:
            raise Refusal("has fonts with unknown letters (it needs text recognition)")
        if last_error is not None:
            raise last_error
        raise Refusal(
            "has no text, perhaps only pictures of pages (a scan needs text recognition first)"
        )
    if empty_pages:
        text.notes.append(_missing(empty_pages, n_pages))
    if unknown_pages:
        pages = counted(len(unknown_pages), "page")
        text.notes.append(f"fonts on {pages} have unknown letters: check the text")
    return whole_words(text.joined())


def _has_unknown_letters(page: PageObject) -> bool:
    """Whether all fonts of a page have numbered shapes without the letters they stand for."""
    resources = page.get("/Resources")
    if resources is not None:
        fonts = resources.get_object().get("/Font")
    else:
        fonts = None
    if fonts is not None:
        fonts = fonts.get_object()
    else:
        fonts = None
    if not isinstance(fonts, dict) or not fonts:
        return False
    return all(_is_unknown(font.get_object()) for font in list(fonts.values())[:_MOST_FONTS])


def _is_unknown(font: Any) -> bool:
    if not isinstance(font, dict) or font.get("/Subtype") != "/Type0" or "/ToUnicode" in font:
        return False
    return str(font.get("/Encoding")) in ("/Identity-H", "/Identity-V")


def _is_likely_text(words: str) -> bool:
    """Whether most characters are letters: some programs number shapes by their letters."""
    n_usual = sum(character.isalnum() or character.isspace() for character in words)
    return n_usual >= _LEAST_SHARE_OF_LETTERS * len(words)


def _missing(empty_pages: list[int], n_pages: int) -> str:
    numbers = ", ".join(map(str, empty_pages[:_MOST_NAMED_PAGES]))
    if len(empty_pages) > _MOST_NAMED_PAGES:
        ellipsis = ", ..."
    else:
        ellipsis = ""
    pages = counted(len(empty_pages), "page")
    return (
        f"no text on {pages} of {n_pages} ({numbers}{ellipsis}), perhaps scans "
        "(they need text recognition first)"
    )


def whole_words(text: str) -> str:
    """Join words that are cut at line ends.

    A hyphen stays if the word has it elsewhere, or if both halves are words of the text.
    """
    if not _CUT_WORD.search(text):
        return text
    words = {word.casefold() for word in _WORD.findall(_CUT_WORD.sub(" ", text))}

    def join(match: re.Match[str]) -> str:
        first, hyphen, second, end, space = match.groups()
        if hyphen.startswith("-"):
            is_compound = f"{first}-{second}".casefold() in words
            has_parts = first.casefold() in words and second.casefold() in words
            is_name = not second[0].islower() or not first[-1].islower()
            if is_compound or is_name or (has_parts and f"{first}{second}".casefold() not in words):
                return match[0]
        if space and hyphen.endswith("\n"):
            space = "\n"  # the line now ends after the word
        return f"{first}{second}{end}{space}"

    return _CUT_WORD.sub(join, text)


def _annotations(page: PageObject) -> Iterator[str]:
    """Yield filled fields, comments and added text of a page."""
    annotations = page.get("/Annots")
    if annotations is not None:
        annotations = annotations.get_object()
    else:
        annotations = ()
    if not isinstance(annotations, list):
        return
    for reference in annotations[:_MOST_ANNOTATIONS]:
        annotation = reference.get_object()
        if not isinstance(annotation, dict):
            continue
        subtype = annotation.get("/Subtype")
        words = _line(annotation.get("/Contents"))
        if subtype == "/Widget":
            yield _field(annotation)
        elif subtype == "/FreeText" and words:
            yield words
        elif subtype not in ("/Link", "/Popup", "/FreeText") and words:
            yield f"[comment by {_line(annotation.get('/T')) or '?'}: {words}]"


def _field(annotation: Any) -> str:
    """Return the name and value of a form field; "" if it is empty."""
    names: list[str] = []
    value: Any = None
    is_hidden = False
    for _ in range(_MOST_PARENTS):
        if not isinstance(annotation, dict):
            break
        names += filter(None, [_line(annotation.get("/T"))])
        if value is None:
            value = annotation.get("/V")
        flags = annotation.get("/Ff")
        is_hidden = is_hidden or bool(isinstance(flags, int) and flags & 1 << 13)
        parent = annotation.get("/Parent")
        if parent is not None:
            annotation = parent.get_object()
        else:
            annotation = None
    if hasattr(value, "get_object"):
        value = value.get_object()
    if isinstance(value, list):
        value = ", ".join(_line(entry) for entry in value)
    words = _line(value)
    if not words or words == "/Off" or is_hidden:  # the value of a hidden field may be a password
        return ""
    return f"[field {'.'.join(reversed(names))}: {words.removeprefix('/')}]"


def _line(value: Any) -> str:
    """Return a text object of a PDF; "" for another object."""
    if hasattr(value, "get_object"):
        value = value.get_object()
    if isinstance(value, str):
        return str(value).replace("\r\n", "\n").replace("\r", "\n").strip()
    return ""

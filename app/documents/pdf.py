"""Text of PDF files."""

from __future__ import annotations

import logging
from typing import BinaryIO

from app.documents.text_file import BoundedText
from app.program.refusals import Refusal


def pdf_text(file: BinaryIO) -> str:
    """Return the text of all pages, each after a line with its number."""
    from pypdf import PdfReader

    logging.disable()
    try:
        reader = PdfReader(file)
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except RuntimeError:  # it is not implemented
        raise Refusal("is locked in a way that is not known here (save it without)") from None
    if is_locked:
        raise Refusal("is locked by a password (save it without)")
    text, n_empty, last = BoundedText(), 0, None
    for number, page in enumerate(reader.pages, 1):
        words = ""
        try:
            words = page.extract_text().strip()
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # pypdf raises a dozen kinds; the other pages may be sound
            last = error
        n_empty += not words
        text.add(f"[page {number}]\n{words}\n")
    if n_empty == len(reader.pages):
        if last is not None:
            raise last
        raise Refusal("holds no text, perhaps pictures of pages (a scan needs text recognition first)")
    return text.joined()

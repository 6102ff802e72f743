"""Text of HTML, DOCX and PDF files. Runs in a process of its own with little memory and time: files are hostile.

``python -m app.documents.convert KIND CPU_S`` reads the file from stdin and writes its text to stdout; where that
fails it writes the reason and ends with ``FAILED``.
"""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable
from typing import BinaryIO

from app.documents.text_file import FAILED, BoundedText
from app.documents.web_page import html_text
from app.documents.word import docx_text
from app.program.refusals import Refusal

MEMORY_BYTES = 768 << 20


def pdf_text(file: BinaryIO) -> str:
    """Return the text of all pages of a PDF, each after a line with its number."""
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


CONVERTERS: dict[str, Callable[[BinaryIO], str]] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), html_text),
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), docx_text),
    ".pdf": pdf_text,
}
"""Of each of ``KINDS``."""


def converted(kind: str, file: BinaryIO) -> str:
    """Return the text of a file. Raises Refusal: it has none, or is not sound."""
    try:
        return CONVERTERS[kind](file)
    except (Refusal, MemoryError, RecursionError) as error:
        raise Refusal(str(error) or "needs too much memory") from None
    except Exception as error:  # pypdf alone raises a dozen kinds
        raise Refusal(f"is not a sound {kind[1:].upper()} file ({type(error).__name__})") from None


def main() -> None:
    """Convert stdin to stdout."""
    from engine.prompt.template_sandbox import limit_process

    kind, cpu_s = sys.argv[-2:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
    limit_process(MEMORY_BYTES)
    try:
        said, code = converted(kind, sys.stdin.buffer), 0
    except Refusal as refusal:
        said, code = str(refusal), FAILED
    sys.stdout.buffer.write(said.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()

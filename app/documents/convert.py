"""Text of HTML, DOCX and PDF files. Runs in a process of its own with little memory and time: files are hostile.

``python -m app.documents.convert KIND CPU_S`` reads the file from stdin and writes its text to stdout; where that
fails it writes the reason and ends with ``FAILED``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import BinaryIO

from app.documents.pdf import pdf_text
from app.documents.text_file import FAILED
from app.documents.web_page import html_text
from app.documents.word import docx_text
from app.program.refusals import Refusal

MEMORY_BYTES = 768 << 20
CONVERTERS: dict[str, Callable[[BinaryIO], str]] = {
    ".html": html_text,
    ".htm": html_text,
    ".xhtml": html_text,
    ".docx": docx_text,
    ".docm": docx_text,
    ".dotx": docx_text,
    ".dotm": docx_text,
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
    with contextlib.suppress(ImportError):
        import resource

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

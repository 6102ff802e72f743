"""Text of HTML, DOCX, PDF and other files.

Files are not trusted, so this runs in a process with little memory and time.

``python -m app.documents.convert KIND CPU_S`` reads the file from stdin. It writes a line of JSON
with notes on omitted content to stdout, and then the text. If it fails, it writes the reason
instead of the text and exits with ``FAILED``.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import BinaryIO

from app.documents.ebook import epub_text
from app.documents.encoding import decoded
from app.documents.file_types import HEAD_BYTES
from app.documents.mail import mail_text
from app.documents.notebook import notebook_text
from app.documents.open_document import open_document_text
from app.documents.pdf import pdf_text
from app.documents.rich_text import rtf_text
from app.documents.spreadsheet import xlsx_text
from app.documents.text_file import FAILED, MAX_SOURCE_BYTES, BoundedText, TextFullError, bounded
from app.documents.web_page import html_text
from app.documents.word import docx_text
from app.program.refusals import Refusal

MEMORY_BYTES = 768 << 20
_SHARE_OF_TIME = 0.8
"""Share of the time limit after which a conversion stops; the rest is for writing the text."""
_MOST_NOTES = 5


class ConversionTimeoutError(BaseException):
    """The time for a conversion is over. Readers must not catch this."""


def doc_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a .doc file that is really HTML, Rich Text or a saved web page.

    Raises:
        Refusal: it is none of these.
    """
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head.startswith(b"{\\rtf"):
        return rtf_text(file, text)
    if re.match(rb"(?:MIME-Version|From|Content-Type|Date|Subject):", head, re.I):
        return mail_text(file, text)
    if re.search(
        rb"<\0?(?:!doctype|html|head|body|table|p|div|meta)", head[:4096].replace(b"\0", b""), re.I
    ):
        return html_text(file, text)
    return decoded(bounded(file, MAX_SOURCE_BYTES, "the file"), "the file")


Converter = Callable[[BinaryIO, BoundedText], str]
"""Converter of one file type. It adds text and notes to the second argument while reading."""
CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), html_text),
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), docx_text),
    **dict.fromkeys((".odt", ".ott", ".ods", ".odp"), open_document_text),
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx"), xlsx_text),
    ".epub": epub_text,
    **dict.fromkeys((".mhtml", ".mht", ".eml"), mail_text),
    **dict.fromkeys((".doc", ".dot"), doc_text),
    ".rtf": rtf_text,
    ".ipynb": notebook_text,
    ".pdf": pdf_text,
}
"""Converters by suffix."""


def converted(suffix: str, file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a file, as far as time and memory allow; a note says if it is cut.

    Raises:
        Refusal: the file has no text or is damaged.
    """
    text = text or BoundedText()
    try:
        return CONVERTERS[suffix](file, text)
    except TextFullError:
        return _beginning(text, "it is too long")
    except ConversionTimeoutError:
        return _beginning(text, "it takes too long")
    except Refusal:
        raise
    except MemoryError:
        raise Refusal("needs too much memory (save it as text)") from None
    except RecursionError:
        raise Refusal("is nested too deeply (save it as text)") from None
    except Exception as error:  # pypdf alone raises a dozen exception types
        reason = f"is not a sound {suffix[1:].upper()} file ({type(error).__name__})"
        raise Refusal(f"{reason}: open it in its own program and save it as text") from None


def _beginning(text: BoundedText, reason: str) -> str:
    """Return the text read before a conversion was cut off. Raises Refusal: there is none."""
    if not text.n_chars:
        raise Refusal("takes too long (save it as text)")
    words = text.joined()
    text.notes.append(f"only the first {text.n_chars:,} characters are read: {reason}")
    return f"{words}\n[the document is cut here: {reason}]\n"


def _raise_time_is_up(_number: int, _frame: FrameType | None) -> None:
    raise ConversionTimeoutError


def main() -> None:
    """Convert stdin to stdout."""
    from engine.prompt.template_sandbox import limit_process

    suffix = sys.argv[-2]
    cpu_s = int(sys.argv[-1])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    signal.signal(signal.SIGPROF, _raise_time_is_up)
    signal.setitimer(signal.ITIMER_PROF, max(0.5, _SHARE_OF_TIME * cpu_s))
    limit_process(MEMORY_BYTES)
    text = BoundedText()
    code = 0
    try:
        words = converted(suffix, sys.stdin.buffer, text)
    except (Refusal, ConversionTimeoutError) as error:
        words = str(error) or "takes too long (save it as text)"
        code = FAILED
    signal.setitimer(signal.ITIMER_PROF, 0)
    notes = json.dumps(text.notes[:_MOST_NOTES] if code == 0 else [])
    sys.stdout.buffer.write(f"{notes}\n".encode())
    sys.stdout.buffer.write(words.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()

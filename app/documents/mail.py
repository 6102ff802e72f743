"""Messages of mail programs, and web pages that browsers save as one file.

The text says who wrote, and the words.
"""

from __future__ import annotations

import email
import io
from email import policy
from email.message import EmailMessage
from typing import BinaryIO

from app.documents.encoding import decoded
from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText, bounded
from app.documents.web_page import html_text
from app.program.refusals import Refusal
from app.text.figures import counted

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_MOST_PARTS = 1000
_MOST_HEADER_CHARS = 2000


def mail_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the headers that people read and the text.

    Raises:
        Refusal: there is no text, or too much.
    """
    message = email.message_from_bytes(
        bounded(file, MAX_SOURCE_BYTES, "the message"), policy=policy.default
    )
    text = text or BoundedText()
    is_page = str(message.get("From", "")).lstrip('<"').startswith("Saved by ")
    for name in () if is_page else _HEADERS:
        value = " ".join(str(message.get(name, "")).split())[:_MOST_HEADER_CHARS]
        if value:
            text.add(f"{name}: {value}\n")
    words, n_left_out = _words(message)
    if not words.strip() and not text.n_chars:
        raise Refusal("holds no message (save it as text or HTML)")
    text.add(f"\n{words}")
    if n_left_out and not is_page:
        text.notes.append(f"not read: {counted(n_left_out, 'attachment')}")
    return text.joined()


def _words(message: EmailMessage) -> tuple[str, int]:
    """Return the text of a message, and how many attachments it has besides.

    It is the plain text if there are both.
    """
    plain: list[str] = []
    pages: list[str] = []
    n_attachments = 0
    for n_parts, part in enumerate(message.walk()):
        if n_parts >= _MOST_PARTS:
            raise Refusal(f"has more than {_MOST_PARTS} parts (save it as text)")
        if part.is_multipart():
            continue
        kind = part.get_content_type()
        if part.get_content_disposition() == "attachment" or kind not in (
            "text/plain",
            "text/html",
        ):
            n_attachments += 1
        elif kind == "text/plain":
            plain.append(_content(part))
        elif not pages or part.get("Content-Disposition") is not None:
            pages.append(html_text(io.BytesIO(_payload(part).encode("utf-8", "replace"))))
    if any(one.strip() for one in plain):
        words = "\n".join(plain)
    else:
        words = "\n".join(pages)
    return words, n_attachments


def _content(part: EmailMessage) -> str:
    return _payload(part).replace("\r\n", "\n")


def _payload(part: EmailMessage) -> str:
    """Return the decoded text of a part, in the encoding that it names or the likeliest one."""
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return ""
    charset = part.get_content_charset()
    if charset:
        try:
            return raw.decode(charset, "replace")
        except (LookupError, ValueError):
            pass
    return decoded(raw, "the message")

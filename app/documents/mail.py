"""Text of mail messages, and of web pages that browsers save as one file."""

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
_MOST_SECTIONS = 1000
_MOST_HEADER_CHARS = 2000


def mail_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the visible headers and the text of a message.

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
        raise Refusal("has no text (save it as text or HTML)")
    text.add(f"\n{words}")
    if n_left_out and not is_page:
        text.notes.append(f"not read: {counted(n_left_out, 'attachment')}")
    return text.joined()


def _words(message: EmailMessage) -> tuple[str, int]:
    """Return the text of a message, plain text preferred, and the number of attachments."""
    plain: list[str] = []
    pages: list[str] = []
    n_attachments = 0
    for n_sections, section in enumerate(message.walk()):
        if n_sections >= _MOST_SECTIONS:
            raise Refusal(f"has more than {_MOST_SECTIONS} parts (save it as text)")
        if section.is_multipart():
            continue
        content_type = section.get_content_type()
        if section.get_content_disposition() == "attachment" or content_type not in (
            "text/plain",
            "text/html",
        ):
            n_attachments += 1
        elif content_type == "text/plain":
            plain.append(_content(section))
        elif not pages or section.get("Content-Disposition") is not None:
            pages.append(html_text(io.BytesIO(_payload(section).encode("utf-8", "replace"))))
    if any(text.strip() for text in plain):
        words = "\n".join(plain)
    else:
        words = "\n".join(pages)
    return words, n_attachments


def _content(section: EmailMessage) -> str:
    return _payload(section).replace("\r\n", "\n")


def _payload(section: EmailMessage) -> str:
    """Return the decoded text of a section, in its declared or else the likeliest encoding."""
    raw = section.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return ""
    charset = section.get_content_charset()
    if charset:
        try:
            return raw.decode(charset, "replace")
        except (LookupError, ValueError):
            pass
    return decoded(raw, "the message")

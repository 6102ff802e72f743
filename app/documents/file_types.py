"""File types by first bytes and names, with advice for types that cannot be read."""

from __future__ import annotations

import re

from app.program.refusals import Refusal


class KindRefusal(Refusal):
    """The file has a type that cannot be read."""


WORD = frozenset((".docx", ".docm", ".dotx", ".dotm"))
ZIPPED = {
    "text document": frozenset((".odt", ".ott")),
    "spreadsheet": frozenset((".xlsx", ".xlsm", ".xltx", ".ods")),
    "presentation": frozenset((".odp",)),
    "book": frozenset((".epub",)),
}
"""Suffixes of further ZIP files that are read, by type; others of these types are not."""
_SAMPLE_BYTES = 4096
HEAD_BYTES = 1 << 16
"""Number of bytes at the beginning of a file that tell its type."""
_MAGIC = (
    (b"\x89PNG", "picture"),
    (b"\xff\xd8\xff", "picture"),
    (b"GIF8", "picture"),
    (b"II*\0", "picture"),
    (b"MM\0*", "picture"),
    (b"8BPS", "picture"),
    (b"\0\0\1\0", "picture"),
    (b"\xd7\xcd\xc6\x9a", "picture"),
    (b"ID3", "recording"),
    (b"\xff\xfb", "recording"),
    (b"\xff\xf3", "recording"),
    (b"OggS", "recording"),
    (b"fLaC", "recording"),
    (b"\x1a\x45\xdf\xa3", "recording"),
    (b"\x1f\x8b", "compressed"),
    (b"BZh", "compressed"),
    (b"\xfd7zXZ\0", "compressed"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"7z\xbc\xaf\x27\x1c", "archive"),
    (b"Rar!\x1a\x07", "archive"),
    (b"\x7fELF", "program"),
    (b"\xcf\xfa\xed\xfe", "program"),
    (b"\xca\xfe\xba\xbe", "program"),
    (b"\0asm", "program"),
    (b"GGUF", "model"),
    (b"SQLite format 3\0", "database"),
    (b"\xd0\xcf\x11\xe0", "old office"),
)
_ZIP_CONTENTS = (
    (rb"mimetypeapplication/vnd\.oasis\.opendocument\.(?:text|graphics)", "text document"),
    (rb"mimetypeapplication/vnd\.oasis\.opendocument\.spreadsheet", "spreadsheet"),
    (rb"mimetypeapplication/vnd\.oasis\.opendocument\.presentation", "presentation"),
    (rb"mimetypeapplication/epub\+zip", "book"),
    (rb"word/", "docx"),
    (rb"xl/", "spreadsheet"),
    (rb"ppt/", "presentation"),
    (rb"\[Content_Types\]\.xml", "docx"),
)
"""Types of ZIP files by names in them."""
_ADVICE = {
    "picture": (
        "is a picture; only text can be read "
        "(paste what it says, or let a program recognise its text)"
    ),
    "recording": "is a sound or video file, and only text is read (paste a transcript)",
    "compressed": "is a compressed file (unpack it, and name what comes out)",
    "archive": "is an archive (unpack it, and name the files in it)",
    "program": "is a program or library, not a text (name its source files)",
    "model": "is a model, not a text (jalopy FILE opens it)",
    "database": "is a database (export its tables as CSV)",
    "font": "is a font, not a text",
    "spreadsheet": "is a spreadsheet of another kind (save it as XLSX, ODS or CSV)",
    "presentation": "is a presentation (save it as ODP or PDF)",
    "text document": "is a document of another word processor (save it as ODT, DOCX, PDF or text)",
    "book": "is an e-book of another kind (convert it to EPUB, PDF or text)",
    "old word": "is an old Word file (save it as DOCX, PDF or text)",
    "old office": "is an old Office file (save it as DOCX, PDF, CSV or text)",
    "mail": "is an Outlook message (save it as text or EML)",
}
"""Reasons and advice for types that cannot be read."""
_NAMES = {
    "picture": ".png .jpg .jpeg .gif .webp .bmp .tif .tiff .heic .heif .avif .psd .ico .jxl .xcf",
    "recording": (
        ".mp3 .m4a .wav .ogg .opus .flac .aac .wma .aiff .mp4 .mkv .mov .avi .webm .m4v .wmv"
    ),
    "compressed": ".gz .bz2 .xz .zst .lz4 .lzma .z",
    "archive": ".zip .7z .rar .tar .tgz .iso .cab .jar .apk .deb .rpm .whl .dmg",
    "program": ".exe .dll .so .dylib .class .pyc .o .a .wasm .bin",
    "model": ".gguf .safetensors .pt .pth .onnx",
    "database": ".db .sqlite .sqlite3 .mdb .accdb",
    "font": ".ttf .otf .woff .woff2",
    "spreadsheet": ".xlsx .xlsm .xltx .xlsb .xls .ods .numbers",
    "presentation": ".pptx .pptm .ppsx .ppt .pps .odp .key",
    "text document": ".odt .ott .pages .wpd .wps .sxw .hwp .hwpx .djvu .xps",
    "book": ".epub .mobi .azw .azw3 .fb2.zip .lit",
    "old word": ".doc .dot",
    "mail": ".msg .pst",
}
_KINDS_BY_NAME = {
    suffix: file_type for file_type, suffixes in _NAMES.items() for suffix in suffixes.split()
}
_READ = {"pdf": "a PDF", "docx": "a DOCX", "rtf": "an RTF"}
"""Types that are read if the file name agrees."""


def refuse_unsupported(suffix: str, head: bytes) -> None:
    """Refuse a file whose type cannot be read or differs from its name.

    Args:
        suffix: lower-case end of the name, with the dot.
        head: first ``HEAD_BYTES`` of the file.

    Raises:
        KindRefusal: the message says what to do.
    """
    file_type = _kind_of(head)
    if file_type == "old office" and suffix in WORD:
        return  # a DOCX file with a password
    if file_type == "docx" and b"word/" not in head and suffix in _KINDS_BY_NAME:
        file_type = "archive"
    if file_type in ("archive", "old office"):
        file_type = _KINDS_BY_NAME.get(suffix, file_type)
    if suffix in ZIPPED.get(file_type, ()):
        return
    if file_type in _READ:
        names = {"pdf": frozenset((".pdf",)), "docx": WORD, "rtf": frozenset((".rtf", ".doc"))}[
            file_type
        ]
        if suffix not in names:
            raise KindRefusal(
                f"is {_READ[file_type]} file named {suffix or 'without an ending'} "
                f"(rename it to end in .{file_type})"
            )
    elif file_type in _ADVICE:
        raise KindRefusal(_ADVICE[file_type])
    elif suffix in WORD and not head.startswith(b"PK"):
        raise KindRefusal(
            f"is not really a {suffix[1:].upper()} file (save it as DOCX, PDF or text)"
        )
    elif suffix == ".pdf" and head.strip() and b"%PDF" not in head[:1024]:
        raise KindRefusal("is not really a PDF file (save it as PDF or text)")


def advice_for(suffix: str) -> str:
    """Return the advice for a file that is not text, by its suffix."""
    file_type = _KINDS_BY_NAME.get(suffix, "")
    return _ADVICE.get(file_type, "is not a text file (save it as text, PDF or DOCX)")


def _kind_of(head: bytes) -> str:
    """Return the type that the first bytes tell; "" for text and unknown types."""
    if head.startswith(b"{\\rtf"):
        return "rtf"
    if b"%PDF-" in head[:64] and not head[: head.index(b"%PDF-")].strip(b" \t\r\n\xef\xbb\xbf"):
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return next(
            (file_type for names, file_type in _ZIP_CONTENTS if re.search(names, head)), "archive"
        )
    if head.startswith(b"PK\x05\x06"):
        return "archive"
    if _is_plain(head):
        return ""
    if head.startswith(b"RIFF") and head[8:12] in (b"WEBP", b"WAVE", b"AVI "):
        if head[8:12] == b"WEBP":
            return "picture"
        return "recording"
    if head[4:8] == b"ftyp":
        is_picture = head[8:12] in (b"heic", b"heix", b"mif1", b"avif", b"msf1")
        if is_picture:
            return "picture"
        return "recording"
    if head[:2] == b"BM" and head[6:10] == b"\0\0\0\0":
        return "picture"
    if head[:2] == b"MZ" and b"\0" in head[:64]:
        return "program"
    if head[257:262] == b"ustar":
        return "archive"
    return next((file_type for magic, file_type in _MAGIC if head.startswith(magic)), "")


def _is_plain(head: bytes) -> bool:
    """Whether bytes are UTF-8 without zeros, even if they begin like another file type."""
    sample = head[:_SAMPLE_BYTES]
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 4:
            return False
    return b"\0" not in sample

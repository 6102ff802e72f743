"""Kinds of files that are converted to text by a process of its own, and its limits; light, for the first frame."""

import re

KINDS = frozenset((".html", ".htm", ".xhtml", ".docx", ".pdf"))
"""By how a file's name ends; everything else is read as text."""
FAILED = 3
"""Exit code of the process where it writes a reason and no text."""
MAX_SOURCE_BYTES = 64 << 20
"""Limit on a PDF or DOCX file, and on what a DOCX file's text unpacks to."""
MAX_TEXT_CHARS = 8 << 20
MEMORY_BYTES = 768 << 20
PAGE_LINE = re.compile(r"\[page (\d+)\]")
"""The line before each page of a PDF."""

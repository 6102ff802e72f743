"""Text of Jupyter notebooks: text, code and output; pictures are only named."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

from app.documents.encoding import decoded
from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText, bounded
from app.program.refusals import Refusal
from app.text.figures import counted, size

_SOURCES = ("markdown", "raw", "heading")
_MOST_OUTPUT_CHARS = 20_000
"""Limit on the text of one output."""
_PLAIN = ("text/markdown", "text/plain", "text/latex", "application/json")
"""Types of output that are text, best first."""


def notebook_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a notebook. Raises Refusal: it is damaged or too large."""
    raw = bounded(file, MAX_SOURCE_BYTES, "the notebook")
    if not raw.strip():
        return ""
    try:
        content = json.loads(decoded(raw, "the notebook"))
    except ValueError:
        raise Refusal("is a damaged notebook (save it again in Jupyter, or as text)") from None
    cells = _cells(content)
    language = _language(content)
    text = text or BoundedText()
    n_pictures = 0
    for cell in cells:
        source = _joined(cell.get("source", cell.get("input", ""))).strip("\n")
        if cell.get("cell_type") in _SOURCES:
            text.add(f"{source}\n\n")
            continue
        text.add(f"```{language}\n{source}\n```\n")
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            words, n_left_out = _output(output)
            n_pictures += n_left_out
            text.add(words)
        text.add("\n")
    if n_pictures:
        text.notes.append(f"not read: {counted(n_pictures, 'picture')}")
    return text.joined()


def _cells(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, dict):
        raise Refusal("is not a notebook (save it again in Jupyter, or as text)")
    cells = content.get("cells")
    if cells is None:  # the format before version 4
        sheets = content.get("worksheets")
        if not isinstance(sheets, list):
            sheets = []
        cells = [
            cell
            for sheet in sheets
            if isinstance(sheet, dict)
            for cell in _list(sheet.get("cells"))
        ]
    return [cell for cell in _list(cells) if isinstance(cell, dict)]


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    for key in ("language_info", "kernelspec"):
        if isinstance(metadata, dict):
            about = metadata.get(key)
        else:
            about = None
        if isinstance(about, dict):
            name = about.get("name" if key == "language_info" else "language")
        else:
            name = None
        if isinstance(name, str) and name.isalnum() and len(name) <= 20:
            return name
    return ""


def _output(output: Any) -> tuple[str, int]:
    """Return the text of an output, and the number of pictures left out."""
    if not isinstance(output, dict):
        return "", 0
    if output.get("output_type") in ("error", "pyerr"):
        lines = output.get("traceback")
        if isinstance(lines, list):
            words = "\n".join(line for line in lines if isinstance(line, str))
        else:
            words = ""
        return _fenced(words or f"{output.get('ename')}: {output.get('evalue')}"), 0
    if "text" in output and "data" not in output:
        return _fenced(_joined(output["text"])), 0
    data = output.get("data", output)
    if not isinstance(data, dict):
        return "", 0
    pictures = [
        mime_type
        for mime_type in data
        if isinstance(mime_type, str) and mime_type.startswith(("image/", "png", "jpeg", "svg"))
    ]
    content = next((data[mime_type] for mime_type in _PLAIN if mime_type in data), "")
    words = _fenced(_joined(content) if not isinstance(content, dict) else json.dumps(content))
    for mime_type in pictures[:1]:
        n_bytes = len(_joined(data[mime_type])) * 3 // 4
        words += f"[picture left out: {mime_type[:40]}, {size(n_bytes)}]\n"
    return words, min(1, len(pictures))


def _fenced(words: str) -> str:
    words = words.strip("\n")
    if not words.strip():
        return ""
    if len(words) > _MOST_OUTPUT_CHARS:
        left_out = len(words) - _MOST_OUTPUT_CHARS
        words = f"{words[:_MOST_OUTPUT_CHARS]}\n[{left_out:,} more characters of output left out]"
    return f"Output:\n{words}\n"


def _joined(source: Any) -> str:
    """Return a text that is saved as a string or a list of lines."""
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    if isinstance(source, str):
        return source
    return ""

"""Pictures in requests: data URLs, base64, and files of an allowed folder. Nothing is fetched."""

from __future__ import annotations

import base64
import binascii
import re

from app.conversations.pictures import MOST_PICTURES, Picture
from app.server.api_error import invalid
from app.server.fields import Fields

IMAGE_TYPES = "image_url", "input_image", "image"
"""Types of content parts that hold a picture: of Chat Completions, Responses and Messages."""
_DATA_URL = re.compile(r"data:(?:image/[a-z0-9.+-]{1,40})?(?:;[a-z0-9=._-]{1,40})*;base64,", re.I)
_DETAILS = {"low": "low", "high": "high", "original": "high"}
"""Details by the words of requests; others leave the choice to the settings."""


def read_image_part(part: Fields, pictures: list[Picture]) -> None:
    """Add the picture of a content part to those of its message.

    Raises:
        ApiError: The part is wrong.
    """
    nested = part.nested("image_url") if isinstance(part.value("image_url"), dict) else None
    source = part.nested("source")
    detail = ""
    if source is not None:
        content = _of_source(source)
    else:
        fields = nested or part
        name = "url" if nested is not None else "image_url"
        detail = str(fields.value("detail") or part.value("detail") or "")
        content = _of_url(fields, name)
        fields.ignore_rest()
    for name in ("cache_control", "detail"):
        part.mark_read(name)
    part.ignore_rest()
    part.pictures.add(content, pictures, part.object_path, _DETAILS.get(detail.lower(), ""))


def _of_source(source: Fields) -> bytes:
    """Return the picture of a source of Anthropic's API."""
    source.mark_read("media_type")
    data = source.value("data")
    source_type = source.text("type")
    if source_type == "url":
        content = _of_url(source, "url")
    elif source_type == "base64" and isinstance(data, str):
        content = _decoded(data, source.path("data"))
    else:
        raise invalid(source.path("type"), "must be base64, with the picture in data")
    source.ignore_rest()
    return content


def read_images(message: Fields, pictures: list[Picture]) -> None:
    """Add the pictures of Ollama's field ``images``, a list of base64 strings.

    Raises:
        ApiError: The field is wrong.
    """
    for index, item in enumerate(message.array("images", MOST_PICTURES) or ()):
        path = f"{message.path('images')}[{index}]"
        if not isinstance(item, str):
            raise invalid(path, "must be a picture in base64")
        prefix = _DATA_URL.match(item)
        start = prefix.end() if prefix else 0
        message.pictures.add(_decoded(item[start:], path), pictures, path)


def _of_url(fields: Fields, name: str) -> bytes:
    """Return the picture of a data URL, or of a file in the folder of pictures."""
    url = fields.value(name)
    path = fields.path(name)
    if not isinstance(url, str) or not url:
        raise invalid(path, "must be a data URL, data:image/png;base64,...")
    prefix = _DATA_URL.match(url)
    if prefix is not None:
        return _decoded(url[prefix.end() :], path)
    if url[:5].lower() == "data:":
        raise invalid(path, "must be a picture in base64, data:image/png;base64,...")
    return fields.pictures.read_file(url, path)


def _decoded(text: str, path: str) -> bytes:
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        content = b""
    if not content:
        raise invalid(path, "holds no picture in base64")
    return content

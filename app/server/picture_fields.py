"""Pictures in requests: data URLs and base64. Nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from app.conversations.pictures import MOST_PICTURES, Picture
from app.server.api_error import ApiError, invalid
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
        source.mark_read("media_type")
        data = source.value("data")
        if source.text("type") != "base64" or not isinstance(data, str):
            raise invalid(source.path("type"), "must be base64, with the picture in data")
        content = _decoded(data, source.path("data"))
        source.ignore_rest()
    else:
        fields = nested or part
        name = "url" if nested is not None else "image_url"
        detail = str(fields.value("detail") or part.value("detail") or "")
        content = _of_url(fields.value(name), fields.path(name))
        fields.ignore_rest()
    for name in ("cache_control", "detail"):
        part.mark_read(name)
    part.ignore_rest()
    add_picture(content, pictures, part.object_path, _DETAILS.get(detail.lower(), ""))


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
        add_picture(_decoded(item[start:], path), pictures, path)


def add_picture(content: bytes, pictures: list[Picture], path: str, detail: str = "") -> None:
    """Add a picture to those of a message."""
    if len(pictures) >= MOST_PICTURES:
        raise ApiError(
            f"{path}: at most {MOST_PICTURES} pictures go into one message",
            param=path,
            code="too_many_images",
        )
    pictures.append(Picture.of(content, f"picture {len(pictures) + 1}", detail))


def _of_url(url: Any, path: str) -> bytes:
    """Return the picture of a data URL."""
    if not isinstance(url, str):
        raise invalid(path, "must be a data URL, data:image/png;base64,...")
    prefix = _DATA_URL.match(url)
    if prefix is None:
        raise invalid(
            path,
            "must be a data URL, data:image/png;base64,... (this server fetches nothing)",
        )
    return _decoded(url[prefix.end() :], path)


def _decoded(text: str, path: str) -> bytes:
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        content = b""
    if not content:
        raise invalid(path, "holds no picture in base64")
    return content

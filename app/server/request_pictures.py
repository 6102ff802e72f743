"""Pictures of one request: their limits, and the folder whose files a request may name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.conversations.pictures import MOST_PICTURES, Picture
from app.server.api_error import ApiError, invalid
from engine.errors import EngineError
from engine.vision import pixels

MAX_PICTURES = 64
"""Limit on the pictures of all messages of a request."""
MAX_BYTES = 64 << 20
"""Limit on the files of all pictures of a request."""
MAX_PIXELS = 200_000_000
"""Limit on the pixels of all pictures of a request."""
MAX_PATH_CHARS = 4096
_LOCAL_HOSTS = "", "localhost"


class RequestPictures:
    """Pictures of a request.

    Args:
        folder: Folder whose files the request may name; None if it may name none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._n_pictures = 0
        self._n_bytes = 0
        self._n_pixels = 0

    def add(self, content: bytes, pictures: list[Picture], path: str, detail: str = "") -> None:
        """Add a picture to those of a message.

        Args:
            content: Content of its file.
            pictures: Pictures of the message.
            path: Path of the field in the request.
            detail: As in ``Picture``.

        Raises:
            ApiError: It is no picture, or beyond a limit.
        """
        if len(pictures) >= MOST_PICTURES:
            raise _too_many(path, f"at most {MOST_PICTURES} pictures go into one message")
        self._n_pictures += 1
        if self._n_pictures > MAX_PICTURES:
            raise _too_many(path, f"at most {MAX_PICTURES} pictures go into one request")
        self._n_bytes += len(content)
        if self._n_bytes > MAX_BYTES:
            raise _too_large(path, f"have more than {MAX_BYTES >> 20} MiB together")

        name = f"picture {len(pictures) + 1}"
        try:
            width, height = pixels.read_size(content, name)
        except EngineError as error:
            raise ApiError(f"{path}: {error}", param=path, code="image_error") from None
        self._n_pixels += width * height
        if self._n_pixels > MAX_PIXELS:
            raise _too_large(path, f"have more than {MAX_PIXELS // 1_000_000} million pixels")
        pictures.append(Picture.of(content, name, detail))

    def read_file(self, address: str, path: str) -> bytes:
        """Return the content of a picture's file in the folder.

        Args:
            address: Path of the file, or its ``file:`` URL.
            path: Path of the field in the request.

        Raises:
            ApiError: The address is another one, or the file cannot be read.
        """
        scheme = _scheme_of(address)
        if scheme not in ("", "file"):
            raise invalid(
                path,
                f"is an address ({scheme}:): this server fetches nothing from the network (send "
                f"a data URL, data:image/png;base64,...)",
            )
        if self._folder is None:
            raise invalid(
                path,
                "must be a data URL, data:image/png;base64,... (this server reads no files; "
                "its owner can allow a folder: jalopy serve --pictures FOLDER)",
            )
        file = _path_in(self._folder, address)
        if file is None:
            raise invalid(path, "is no file in the folder of pictures of this server")
        try:
            return pixels.read_bytes(file)
        except EngineError as error:
            raise ApiError(f"{path}: {error}", param=path, code="image_error") from None


def _scheme_of(address: str) -> str:
    """Return the scheme of a URL; "" for a path."""
    scheme, colon, rest = address[:MAX_PATH_CHARS].partition(":")
    is_url = colon and rest.startswith("/") and len(scheme) > 1 and scheme.isalnum()
    return scheme.lower() if is_url else ""


def _path_in(folder: Path, address: str) -> Path | None:
    """Return the path of a file, without links, if it is in a folder; else None."""
    if len(address) > MAX_PATH_CHARS:
        return None
    text = address
    try:
        if _scheme_of(address):
            url = urlsplit(address)
            if url.netloc.lower() not in _LOCAL_HOSTS:
                return None
            text = unquote(url.path)
        top = folder.resolve(strict=True)
        file = (top / text).resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    if top in file.parents:
        return file
    return None


def _too_many(path: str, reason: str) -> ApiError:
    return ApiError(f"{path}: {reason}", param=path, code="too_many_images")


def _too_large(path: str, reason: str) -> ApiError:
    return ApiError(
        f"{path}: the pictures of this request {reason} (send fewer or smaller ones)",
        413,
        param=path,
        code="image_too_large",
    )

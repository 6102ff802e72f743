"""Pixels of pictures: files read within limits, turned, put over white, and resized.

Pillow decodes. It is imported with the first picture. A picture is read as a whole before it is
decoded, and its size is checked before its pixels are.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError, printable
from engine.vision.rows import Pixels
from engine.vision.sizes import Size, fitted_size

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"
MAX_FILE_BYTES = 100 << 20
MAX_PIXELS = 100_000_000
MAX_SIDE = 65_500
_SMALL_FACTOR = 4
"""Multiple of a small size at which a JPEG file is decoded for it."""
BILINEAR = "BILINEAR"
BICUBIC = "BICUBIC"
LANCZOS = "LANCZOS"
"""Filters, by their names in Pillow."""
_PNG = "image/png"
_JPEG = "image/jpeg"
_MEDIA_TYPES = {"PNG": _PNG, "JPEG": _JPEG}
"""Media types of the formats that every program reads."""
_JPEG_QUALITY = 90
_ORIENTATION = 274
"""Number of the EXIF field that says how a camera was held."""
_UPRIGHT = 1


class PictureError(EngineError):
    """A picture that cannot be read; the message names it."""


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a picture's file.

    Raises:
        PictureError: There is no such regular file, it is too large, or it changed meanwhile.
    """
    name = printable(Path(path).name or str(path))
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise PictureError(f"{name}: is not a regular file (name a picture)")
            _check_file_size(before.st_size, name)
            data = file.read(MAX_FILE_BYTES + 1)
            after = os.fstat(file.fileno())
    except FileNotFoundError:
        raise PictureError(f"{name}: no such file (check the path)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PictureError(f"{name}: cannot be read: {printable(reason)}") from None
    is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    if not is_same or len(data) != before.st_size:
        raise PictureError(f"{name}: was changed while it was read (try again)")
    return data


def _check_file_size(n_bytes: int, name: str) -> None:
    if n_bytes > MAX_FILE_BYTES:
        raise PictureError(
            f"{name}: has {n_bytes / 1e6:,.0f} MB, at most {MAX_FILE_BYTES / 1e6:,.0f} MB are read "
            f"(make it smaller)"
        )


def decode(data: bytes, name: str = "picture") -> Pixels:
    """Return the pixels of a picture, (height, width, 3) uint8.

    It is turned as its EXIF data say, and transparent parts are put over white. Of an animation,
    the first frame is read.

    Args:
        name: Name for messages.

    Raises:
        PictureError: It is no picture of ``FORMATS``, broken, or too large.
    """
    name = printable(name)
    _check_file_size(len(data), name)
    with _reported(name):
        from PIL import Image, ImageOps

        image: Image.Image
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, name)
            image.load()
            _check_size(image.size, name)
            return _over_white(_turned(image, ImageOps))


def read_size(data: bytes, name: str = "picture") -> Size:
    """Return width and height of a picture, before it is turned, without decoding it.

    Raises:
        PictureError: It is no picture of ``FORMATS``, or too large.
    """
    name = printable(name)
    _check_file_size(len(data), name)
    with _reported(name):
        from PIL import Image

        image: Image.Image
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, name)
            return image.size


def small(data: bytes, size: Size) -> Pixels:
    """Return a picture at a small size, turned and put over white like ``decode``; its aspect is
    the caller's. JPEG files are decoded at a fraction of their size.

    Raises:
        PictureError: It is no picture of ``FORMATS``, broken, or too large.
    """
    name = "picture"
    _check_file_size(len(data), name)
    with _reported(name):
        from PIL import Image, ImageOps

        image: Image.Image
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, name)
            longest = _SMALL_FACTOR * max(size)
            image.draft("RGB", (longest, longest))
            image.load()
            _check_size(image.size, name)
            return stretch(_over_white(_turned(image, ImageOps)), size, BILINEAR)


def quantised(pixels: Pixels, n_colours: int) -> tuple[Pixels, bytes]:
    """Return a picture in few colours: the number of the colour of each pixel, and red, green and
    blue of each colour."""
    from PIL import Image

    image = Image.fromarray(pixels).quantize(n_colours)
    return np.asarray(image), bytes(image.getpalette() or ())


@contextmanager
def _reported(name: str) -> Iterator[None]:
    """Turn any exception of a decoder, which a hostile file may cause, into one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except EngineError:
        raise
    except ImportError:
        raise PictureError(f"{name}: reading pictures needs Pillow (pip install pillow)") from None
    except MemoryError:
        raise PictureError(f"{name}: there is no memory to decode it (make it smaller)") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and others
        if type(error).__name__ == "UnidentifiedImageError":
            raise PictureError(
                f"{name}: is no picture of a known format ({', '.join(FORMATS)})"
            ) from None
        if type(error).__name__ == "DecompressionBombError":
            raise PictureError(_too_large(name)) from None
        raise PictureError(f"{name}: is damaged: {printable(str(error))}") from None


def _check_size(size: Size, name: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise PictureError(f"{name}: has no pixels")
    if width * height > MAX_PIXELS or max(size) > MAX_SIDE:
        raise PictureError(f"{_too_large(name)}: {width:,} x {height:,}")


def _too_large(name: str) -> str:
    return f"{name}: has too many pixels, at most {MAX_PIXELS // 1_000_000} million are read"


def _turned(image: Image, operations: Any) -> Image:
    """Turn a picture as its EXIF data say; data that cannot be read say nothing."""
    try:
        turned: Image = operations.exif_transpose(image)
    except Exception:
        return image
    return turned


def _over_white(image: Image) -> Pixels:
    from PIL import Image as images

    if image.mode.startswith("I") or image.mode == "F":
        return _grey(np.asarray(image))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        paper = images.new("RGBA", layer.size, (255, 255, 255, 255))
        paper.alpha_composite(layer)
        image = paper
    pixels: Pixels = np.asarray(image.convert("RGB")).copy()
    return pixels


def _grey(levels: np.ndarray[Any, Any]) -> Pixels:
    """Return grey levels of 16 bits, or of any range if they are floats, as three channels."""
    values = levels.astype(np.float64)
    most = 65535.0
    if levels.dtype.kind == "f":
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        most = max(1.0, float(values.max()))
        if most <= 255:
            most = 255.0
    grey = np.clip(values * (255.0 / most) + 0.5, 0, 255).astype(np.uint8)
    pixels: Pixels = np.repeat(grey[:, :, None], 3, axis=2)
    return pixels


def stretch(pixels: Pixels, size: Size, resample: str) -> Pixels:
    """Resize a picture, widths first: newer Pillows choose the order, which changes the result."""
    from PIL import Image

    height, width, _ = pixels.shape
    if (width, height) == size:
        return pixels
    image = Image.fromarray(pixels)
    method = Image.Resampling[resample]
    if width != size[0]:
        image = image.resize((size[0], height), method)
    if height != size[1]:
        image = image.resize(size, method)
    return np.asarray(image)


def fit(pixels: Pixels, canvas: Size, resample: str) -> Pixels:
    """Resize a picture into the middle of a black canvas, with its aspect."""
    height, width, _ = pixels.shape
    size = fitted_size((width, height), canvas)
    resized = stretch(pixels, size, resample)
    if size == canvas:
        return resized
    out = np.zeros((canvas[1], canvas[0], 3), np.uint8)
    left = (canvas[0] - size[0]) // 2
    top = (canvas[1] - size[1]) // 2
    out[top : top + size[1], left : left + size[0]] = resized
    return out


def fit_file(
    data: bytes, longest_side: int, max_bytes: int, name: str = "picture"
) -> tuple[bytes, str]:
    """Return a picture's file for another program: PNG or JPEG, upright, with at most these pixels
    along a side, and its media type. A file that is like that already is returned as it is.

    Args:
        data: Content of the file.
        longest_side: Limit on width and height.
        max_bytes: Limit on a file that is returned as it is. Of new PNG files, those above a
            quarter of it become JPEG.
        name: Name for messages.

    Raises:
        PictureError: It cannot be read.
    """
    size = read_size(data, name)
    with _reported(printable(name)):
        from PIL import Image

        image: Image.Image
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            media_type = _MEDIA_TYPES.get(image.format or "", "")
            is_upright = _is_upright(image)
    is_small = max(size) <= longest_side and len(data) <= max_bytes
    if media_type and is_upright and is_small:
        return data, media_type

    image = Image.fromarray(decode(data, name))
    image.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    if media_type == _JPEG or file.tell() > max_bytes // 4:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=_JPEG_QUALITY)
        return file.getvalue(), _JPEG
    return file.getvalue(), _PNG


def _is_upright(image: Image) -> bool:
    """Whether a picture needs no turning; EXIF data that cannot be read say nothing."""
    try:
        return bool(image.getexif().get(_ORIENTATION, _UPRIGHT) == _UPRIGHT)
    except Exception:
        return True

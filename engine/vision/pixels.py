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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError, printable
from engine.machine import host
from engine.vision.config import CHANNELS
from engine.vision.rows import Pixels
from engine.vision.sizes import Size, fitted_size

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"
MAX_FILE_BYTES = 100 << 20
MAX_PIXELS = 100_000_000
MAX_SIDE = 65_500
_STRIP_PIXELS = 1 << 20
_BYTES_PER_PIXEL = 8
"""Memory of a picture that is decoded: four bytes for Pillow, three for the result."""
_SMALL_BYTES = 64 << 20
"""Memory for which no check is worth its time."""
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
            _check_memory(image.size, name)
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
            _check_memory(image.size, name)
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
        raise PictureError(_no_memory(name)) from None
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


def _check_memory(size: Size, name: str) -> None:
    """Raise PictureError if memory is short for a large picture; a small file may be one."""
    n_bytes = size[0] * size[1] * _BYTES_PER_PIXEL
    if n_bytes > _SMALL_BYTES and n_bytes > host.available_memory_bytes():
        raise PictureError(_no_memory(name))


def _no_memory(name: str) -> str:
    return f"{name}: there is no memory to decode it (make it smaller)"


def _too_large(name: str) -> str:
    return f"{name}: has too many pixels, at most {MAX_PIXELS // 1_000_000} million are read"


def _turned(image: Image, operations: Any) -> Image:
    """Turn a picture as its EXIF data say; data that cannot be read say nothing."""
    with suppress(Exception):
        operations.exif_transpose(image, in_place=True)
    return image


def _over_white(image: Image) -> Pixels:
    """Return the pixels of a picture over white: strip by strip, for copies take memory."""
    width, height = image.size
    pixels: Pixels = np.empty((height, width, CHANNELS), np.uint8)
    most_grey = 0.0
    if _is_grey(image):
        most_grey = max(_most_grey(strip) for _, strip in _strips(image))
    for start, strip in _strips(image):
        rows = pixels[start : start + strip.height]
        if _is_grey(strip):
            rows[:] = _grey(np.asarray(strip), most_grey)
        else:
            rows[:] = _strip_over_white(strip)
    return pixels


def _strips(image: Image) -> Iterator[tuple[int, Image]]:
    """Yield strips of a picture, each with its first row."""
    width, height = image.size
    n_rows = max(1, _STRIP_PIXELS // width)
    for start in range(0, height, n_rows):
        yield start, image.crop((0, start, width, min(height, start + n_rows)))


def _strip_over_white(strip: Image) -> Pixels:
    from PIL import Image as images

    if strip.has_transparency_data:
        layer = strip.convert("RGBA")
        strip = images.new("RGBA", layer.size, (255, 255, 255, 255))
        strip.alpha_composite(layer)
    return np.asarray(strip.convert("RGB"))


def _is_grey(image: Image) -> bool:
    """Return whether a picture has grey levels of more than 8 bits."""
    return image.mode.startswith("I") or image.mode == "F"


def _most_grey(image: Image) -> float:
    """Return the level of white: that of 16 bits, or the largest if levels are floats."""
    if image.mode != "F":
        return 65535.0
    values = np.nan_to_num(np.asarray(image), posinf=0.0, neginf=0.0)
    return max(255.0, float(values.max()))


def _grey(levels: np.ndarray[Any, Any], most: float) -> Pixels:
    """Return grey levels as bytes of a single channel.

    Args:
        most: level of white.
    """
    values = np.nan_to_num(levels.astype(np.float64), posinf=0.0, neginf=0.0)
    grey: Pixels = np.clip(values * (255.0 / most) + 0.5, 0, 255).astype(np.uint8)
    return grey[:, :, None]


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

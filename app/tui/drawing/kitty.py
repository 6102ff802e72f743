"""Kitty's graphics protocol: sending and deleting pictures, and the characters of their cells.

A picture is sent once. Where a cell of it is to appear, the text has a placeholder with two
combining marks, for row and column, in a colour that names the picture. So a picture moves, is cut
and is covered like text (sw.kovidgoyal.net/kitty/graphics-protocol, "Unicode placeholders").
"""

from __future__ import annotations

import zlib
from base64 import standard_b64encode

from app.documents.thumbnails import Thumbnail

_PLACEHOLDER = "\U0010eeee"
_CHUNK_BYTES = 4096
_MARKS = tuple(
    map(
        chr,
        (
            *(0x305, 0x30D, 0x30E, 0x310, 0x312, 0x33D, 0x33E, 0x33F, 0x346, 0x34A, 0x34B, 0x34C),
            *(0x350, 0x351, 0x352, 0x357, 0x35B, 0x363, 0x364, 0x365, 0x366, 0x367, 0x368, 0x369),
            *(0x36A, 0x36B, 0x36C, 0x36D, 0x36E, 0x36F, 0x483, 0x484, 0x485, 0x486, 0x487, 0x592),
            *(0x593, 0x594, 0x595, 0x597, 0x598, 0x599, 0x59C, 0x59D, 0x59E, 0x59F, 0x5A0, 0x5A1),
        ),
    )
)
"""Combining marks that stand for the numbers from 0 on."""
MOST_LINES = len(_MARKS)
"""Limit on the columns, and on the rows, of a picture."""
MAX_ID = (1 << 24) - 1
"""Limit on the number of a picture, which a colour names."""


def transmission(number: int, picture: Thumbnail, columns: int, rows: int) -> str:
    """Return the commands that send a picture for placeholders of a size in cells."""
    data = standard_b64encode(zlib.compress(picture.pixels)).decode("ascii")
    keys = (
        f"a=T,U=1,f=24,o=z,t=d,i={number},s={picture.width},v={picture.height},"
        f"c={columns},r={rows},"
    )
    commands = []
    for start in range(0, len(data), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        has_more = int(end < len(data))
        commands.append(f"\x1b_G{keys}m={has_more};{data[start:end]}\x1b\\")
        keys = ""
    return "".join(commands)


def deletion(number: int) -> str:
    """Return the command that deletes a picture and frees its memory."""
    return f"\x1b_Ga=d,d=I,i={number},q=2;\x1b\\"


def cells(number: int, row: int, first_column: int, last_column: int) -> str:
    """Return the characters for neighbouring cells of a picture, in their colour."""
    text = "".join(
        f"{_PLACEHOLDER}{_MARKS[row]}{_MARKS[column]}"
        for column in range(first_column, last_column + 1)
    )
    red = number >> 16
    green = number >> 8 & 0xFF
    blue = number & 0xFF
    return f"\x1b[38;2;{red};{green};{blue}m{text}\x1b[39m"

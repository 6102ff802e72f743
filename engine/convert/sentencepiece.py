"""Reader of SentencePiece's ``tokenizer.model``, a protocol buffers message; only some fields are
read.

Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto and
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from struct import unpack
from typing import Any

from engine.errors import ConversionError

UNIGRAM = 1
BPE = 2
MAX_PIECES = 1 << 21
_PIECES = 1
_TRAINER = 2
_NORMALIZER = 3
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_NORMAL = 1


@dataclass(frozen=True)
class SentencePieceModel:
    """Contents of a SentencePiece file.

    Attributes:
        model_type: ``UNIGRAM`` or ``BPE``.
        pieces: Text, score and type of each token; types have the numbers of ``TokenType``.
        adds_space: Whether a space is added before a text.
        merges_spaces: Whether runs of spaces count as one.
        rules: Table of rewritten characters.
    """

    model_type: int
    pieces: list[tuple[bytes, float, int]]
    adds_space: bool
    merges_spaces: bool
    rules: bytes


def parse_sentencepiece(content: bytes, name: str) -> SentencePieceModel:
    """Parse the content of a file.

    Raises:
        ConversionError: The content is no SentencePiece model.
    """
    pieces: list[tuple[bytes, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(memoryview(content)):
            if number == _PIECES:
                piece = _some_fields(value, (1, 2, 3))
                pieces.append(
                    (
                        _bytes(piece.get(1, b"")),
                        _float(piece.get(2, bytes(4))),
                        piece.get(3, _NORMAL),
                    )
                )
                if len(pieces) > MAX_PIECES:
                    raise ValueError
            elif number in (_TRAINER, _NORMALIZER):
                (trainer if number == _TRAINER else normalizer).update(
                    _some_fields(value, (2, 3, 4))
                )
        model_type = trainer.get(3, UNIGRAM)
        rules = _bytes(normalizer.get(2, b""))
        if (
            not pieces
            or model_type not in (UNIGRAM, BPE)
            or not all(0 <= token_type <= 6 for _, _, token_type in pieces)
        ):
            raise ValueError
    except (
        ValueError,
        TypeError,
        OverflowError,
        IndexError,
        ArithmeticError,
        BufferError,
        LookupError,
    ):
        raise ConversionError(
            f"{name}: is no SentencePiece model of Unigram or BPE (get it again)"
        ) from None
    return SentencePieceModel(
        model_type, pieces, bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)), rules
    )


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field; messages and texts as memoryview, fixed-size numbers as
    bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            value: Any
            value, position = _varint(data, position)
        else:
            if wire_type == _BYTES:
                size, position = _varint(data, position)
            else:
                size, position = ({_FIXED64: 8, _FIXED32: 4}[wire_type], position)
            value = data[position : position + size]
            if len(value) != size:
                raise ValueError
            position += size
        yield key >> 3, value


def _some_fields(data: Any, numbers: tuple[int, ...]) -> dict[int, Any]:
    """Return the last value of each of these fields; other fields are skipped.

    Raises:
        TypeError: The data is no message.
    """
    return {number: value for number, value in _fields(data) if number in numbers}


def _bytes(value: Any) -> bytes:
    """Return a bytes value; raise TypeError for a number, which ``bytes`` would take for a
    length."""
    if not isinstance(value, (bytes, memoryview)):
        raise TypeError
    return bytes(value)


def _float(value: Any) -> float:
    """Return a finite four-byte number; raise ValueError or TypeError for other values."""
    if len(value) != 4:
        raise ValueError
    number = float(unpack("<f", value)[0])
    if not math.isfinite(number):
        raise ValueError
    return number


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError

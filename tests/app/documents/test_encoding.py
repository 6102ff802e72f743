import random

import pytest

from app.documents.encoding import decoded
from app.program.refusals import Refusal

RUSSIAN = "Привет, мир! Сегодня хорошая погода."
JAPANESE = "今日は天気がいいですね。東京へ行きましょう。"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("\u201cquoted\u201d \u2013 \u20ac5, it\u2019s", "cp1252"),
        ("Le caf\u00e9 est tr\u00e8s bon, l\u2019\u00e9t\u00e9 aussi", "cp1252"),
        ("Zażółć gęślą jaźń, dzień dobry wszystkim", "iso8859-2"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "cp866"),
        ("שלום עולם, מה שלומך היום", "cp1255"),
        ("こんにちは", "shift_jis"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "iso2022_jp"),
        ("你好，世界。今天天气很好。", "gbk"),
        ("你好，世界。今天天氣很好，我們去台北。", "big5"),
        ("안녕하세요 세계. 오늘 날씨가 좋습니다.", "euc_kr"),
        ("alpha beta", "utf-16-le"),
        ("Größe: fünf", "utf-16-be"),
        ("这是一个测试文件。\n第二行\u3000好。", "utf-16-be"),
        ("alpha \U0001f600 beta", "utf-32-le"),
        ("alpha", "utf-32"),
        ("alpha", "utf-16"),
    ],
)
def test_text_is_decoded_from_any_known_encoding(text: str, encoding: str) -> None:
    assert decoded(text.encode(encoding), "f") == text


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        (
            '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-2"><p>',
            "iso8859-2",
        ),
        ("<?xml version='1.0' encoding='ISO-8859-2'?><a>", "iso8859-2"),
        ("#!/bin/sh\n# -*- coding: latin-2 -*-\n", "iso8859-2"),
        ('"Content-Type: text/plain; charset=windows-1250\\n"', "cp1250"),
        ("\\usepackage[latin9]{inputenc}", "iso8859-15"),
    ],
)
def test_a_declared_encoding_is_used(declaration: str, encoding: str) -> None:
    text = f"{declaration} \u017e\u00e9"
    assert decoded(text.encode(encoding), "f") == text


def test_an_impossible_declared_encoding_is_ignored() -> None:
    for declaration in ("utf-8", "unicode_escape", "base64", "punycode", "nothing"):
        assert decoded(f'<meta charset="{declaration}">caf\u00e9'.encode("latin-1"), "f").endswith(
            "caf\u00e9"
        )


def test_a_log_with_stray_bytes_is_read() -> None:
    assert (
        decoded(b"one\n" * 50 + b"\0" * 4096 + b"\x01\x1b[31mtwo\n", "f")
        == "one\n" * 50 + "\x01\x1b[31mtwo\n"
    )
    long = "gęślą jaźń\n" * 9
    assert decoded(long.encode() + b"caf\xe9 \n", "f") == f"{long}caf\ufffd \n"
    assert decoded(long.encode()[:-2], "f") == f"{long[:-2]}\ufffd"
    assert decoded(b"\xef\xbb\xbfcaf\xe9", "f") == "caf\u00e9"


def test_every_line_ending_becomes_a_newline() -> None:
    assert decoded(b"one\rtwo\r\nthree\nfour", "f") == "one\ntwo\nthree\nfour"


def test_binary_data_is_refused() -> None:
    noise = random.Random(1).randbytes
    for raw in (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0" + noise(999),
        b"\xff\xd8\xff\xe0\0\x10JFIF" + noise(999),
        noise(300),
    ):
        with pytest.raises(Refusal, match="f: is not a text file"):
            decoded(raw, "f")


def test_bytes_invalid_in_every_encoding_are_refused() -> None:
    raw = b" ".join(bytes((byte, 0x41, byte ^ 0x55, 0x61)) for byte in range(0x81, 0xFF)).replace(
        b"\0", b""
    )
    with pytest.raises(Refusal, match="unknown encoding"):
        decoded(raw, "f")

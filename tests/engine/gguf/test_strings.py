"""Locating strings in groups gives the same strings as reading them one by one."""

from __future__ import annotations

import mmap
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine.errors import GGUFError
from engine.gguf import strings as gguf_strings
from engine.gguf.read import read_gguf
from engine.gguf.strings import (
    StringCount,
    StringsCutError,
    end_of_strings,
    join_with_zeros,
    read_strings,
)
from tests.engine import tiny_gguf

KEY = "tokenizer.ggml.tokens"


def packed(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


def mapped(content: bytes) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def random_strings(seed: int, count: int) -> list[bytes]:
    """Return strings like those of vocabularies; some are empty, long, contain zero bytes, or look
    like lengths."""
    source = random.Random(seed)
    odd = [
        b"",
        b"\0",
        b"\0" * 7,
        b"\0" * 8,
        b"\0" * 20,
        b"a" * 255,
        b"b" * 256,
        b"c" * 70_000,
        struct.pack("<Q", 5),
    ]
    share = source.choice([0, 0.001, 0.3])
    return [
        source.choice(odd)
        if source.random() < share
        else source.randbytes(source.randint(1, 20)).replace(b"\0", b"x")
        for _ in range(count)
    ]


@pytest.mark.parametrize("window_bytes", [300, 5_000, 1 << 18])
@pytest.mark.parametrize("seed", range(12))
def test_the_end_equals_the_end_of_the_last_string(
    seed: int, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_strings, "_WINDOW_BYTES", window_bytes)
    strings = random_strings(seed, 3_000)
    content = packed(strings)
    data = mapped(b"before" + content + packed([b"what", b"follows"]) * 50)
    assert end_of_strings(data, 6, len(data), len(strings)) == 6 + len(content)


def test_strings_at_a_window_end_are_read_in_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single_steps: list[int] = []

    def walk(data: mmap.mmap, start: int, end: int, n_steps: int, index: int) -> Any:
        single_steps.append(n_steps)
        return original(data, start, end, n_steps, index)

    original = gguf_strings._ends_one_by_one
    monkeypatch.setattr(gguf_strings, "_ends_one_by_one", walk)
    monkeypatch.setattr(gguf_strings, "_WINDOW_BYTES", 1_000)
    content = packed([b"token"] * 10_000)
    assert end_of_strings(mapped(content), 0, len(content), 10_000) == len(content)
    assert sum(single_steps) <= 64


@pytest.mark.parametrize("window_bytes", [300, 1 << 18])
@pytest.mark.parametrize("seed", range(12))
def test_strings_equal_those_that_were_written(
    seed: int, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_strings, "_WINDOW_BYTES", window_bytes)
    strings = random_strings(seed, 1 + 97 * seed)
    data = mapped(b"before" + packed([*strings, b"what follows"]))
    array = read_strings(data, 6, len(data), len(strings))
    assert list(array) == strings
    assert (array[-1], array[1:4], len(array)) == (strings[-1], strings[1:4], len(strings))
    assert join_with_zeros(array) == b"\0".join(strings) == join_with_zeros(strings)
    assert array.n_bytes == len(packed(strings))


def test_no_strings_are_an_empty_array() -> None:
    array = read_strings(mapped(b"rest"), 0, 4, 0)
    assert (list(array), join_with_zeros(array), array.n_bytes) == ([], b"", 0)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 66, 129])
def test_a_few_strings_have_the_right_end(count: int) -> None:
    content = packed([b"token"] * count)
    data = mapped(content + b"rest")
    assert end_of_strings(data, 0, len(data), count) == len(content)


def test_strings_longer_than_a_window_do_not_matter() -> None:
    strings = [b"x" * (1 << 20), *[b"token"] * 200] * 2
    content = packed(strings)
    assert end_of_strings(mapped(content), 0, len(content), len(strings)) == len(content)


@pytest.mark.parametrize("cut", [1, 5, 12, 14, 5_000, 19_400])
def test_the_string_that_does_not_end_is_named(cut: int) -> None:
    content = packed([b"token"] * 1_500)[:-cut]
    with pytest.raises(StringsCutError) as caught:
        end_of_strings(mapped(content), 0, len(content), 1_500)
    assert caught.value.index == len(content) // 13
    assert caught.value.offset == len(content) // 13 * 13


def test_an_absurd_length_is_refused() -> None:
    content = packed([b"token"] * 500) + struct.pack("<Q", (1 << 64) - 1) + packed([b"token"] * 500)
    with pytest.raises(StringsCutError) as caught:
        end_of_strings(mapped(content), 0, len(content), 1_001)
    assert caught.value.index == 500


def test_reading_without_strings_changes_nothing_else(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama", "F32")
    with_strings = read_gguf(path)
    without = read_gguf(path, keeps_strings=False)
    assert without.tensors == with_strings.tensors
    assert without.metadata.keys() == with_strings.metadata.keys()
    assert without.metadata[KEY] == StringCount(len(with_strings.metadata[KEY]))
    with_strings.close()
    without.close()


def test_a_truncated_file_is_refused_in_the_same_words(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.set(KEY, [f"token{n}" for n in range(900)])
    content = tiny.write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: content.index(b"token444") + 3])
    messages = []
    for keeps_strings in (True, False):
        with pytest.raises(GGUFError) as caught:
            read_gguf(cut, keeps_strings)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert f"{KEY}[444]" in messages[0]

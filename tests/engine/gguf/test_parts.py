"""Models in several files: opened as one, and refused by the name of the wrong file."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.gguf.parts import PartName, part_name
from engine.gguf.read import read_gguf
from engine.loader import validate
from engine.measure.fit import needs_of_file
from tests.engine import tiny_gguf
from tests.engine.refusals import weights_of
from tests.engine.tiny_gguf import TinyGGUF


def test_a_model_in_three_files_has_the_tensors_of_the_whole_one(tmp_path: Path) -> None:
    model = read_gguf(tiny_gguf.write(tmp_path / "whole.gguf"))
    parts = read_gguf(tiny_gguf.write_parts(tmp_path, "m", 3)[0])
    one = weights_of(model)
    other = weights_of(parts)
    assert other.tensors.keys() == one.tensors.keys()
    assert {info.part for info in parts.tensors.values()} == {0, 1, 2}
    for name, tensor in one.tensors.items():
        found = other[name]
        assert ctypes.string_at(found.address, found.size_bytes) == ctypes.string_at(
            tensor.address, tensor.size_bytes
        )
        assert (other.rows(name) == one.rows(name)).all()
    assert other.quantization_label() == one.quantization_label()
    assert 0 < other.resident_share() <= 1
    assert parts.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("m-*.gguf"))


def test_a_model_in_parts_has_the_needs_of_the_whole_one(tmp_path: Path) -> None:
    needs = needs_of_file(tiny_gguf.write(tmp_path / "whole.gguf"))
    assert needs_of_file(tiny_gguf.write_parts(tmp_path, "m", 2)[0]) == needs


def test_a_copy_in_huge_pages_holds_every_part(tmp_path: Path) -> None:
    weights = validate(tiny_gguf.write_parts(tmp_path, "m", 3)[0]).weights
    copy = weights.copied_to_huge_pages(lambda done, total: None)
    assert all((copy.rows(name) == weights.rows(name)).all() for name in weights.tensors)


def test_a_change_of_any_part_is_seen(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "m", 3)
    gguf = read_gguf(paths[0])
    assert not gguf.changed()
    with paths[2].open("ab") as file:
        file.write(b"\0")
    assert gguf.changed()


@pytest.mark.parametrize(
    ("file_name", "parsed"),
    [
        ("a-00001-of-00003.gguf", PartName("a", 1, 3)),
        ("a-b-00010-of-00010.gguf", PartName("a-b", 10, 10)),
        ("a-00004-of-00003.gguf", None),
        ("a-00000-of-00003.gguf", None),
        ("a-1-of-3.gguf", None),
        ("a-00001-of-00003.bin", None),
        ("-00001-of-00003.gguf", None),
        ("a-00001-of-10000.gguf", None),
        ("a-٠٠٠٠١-of-٠٠٠٠٣.gguf", None),
    ],
)
def test_a_part_is_known_by_its_name(file_name: str, parsed: PartName | None) -> None:
    assert part_name(file_name) == parsed


def _rewrite(path: Path, change: Callable[[TinyGGUF], None], n_tensors: int = 2) -> None:
    part = TinyGGUF()
    part.set("split.no", 1)
    part.set("split.count", 3)
    part.tensors = tiny_gguf.model().tensors[:n_tensors]
    change(part)
    part.write(path)


def _claim(path: Path, n_tensors: Any) -> None:
    """Write the first file again with another ``split.tensors.count``."""
    whole = tiny_gguf.model()
    part = TinyGGUF(keys=list(whole.keys), tensors=whole.tensors[: len(whole.tensors) // 3])
    part.set("split.no", 0)
    part.set("split.count", 3)
    part.set("split.tensors.count", n_tensors)
    part.write(path)


DAMAGES: dict[str, tuple[Callable[[list[Path]], None], str]] = {
    "a part is missing": (
        lambda p: p[1].unlink(),
        "m-00002-of-00003.gguf: no such file (check the path): a part of",
    ),
    "a part is a directory": (
        lambda p: (p[1].unlink(), p[1].mkdir())[0],
        "m-00002-of-00003.gguf: is a directory",
    ),
    "a part is not GGUF": (
        lambda p: void(p[2].write_bytes(b"<html>" + bytes(99))),
        "m-00003-of-00003.gguf: is a web",
    ),
    "a part is truncated": (
        lambda p: void(p[2].write_bytes(p[2].read_bytes()[:-300])),
        "past the end of the file",
    ),
    "two parts are the same": (lambda p: void(shutil.copy(p[1], p[2])), "split.no is 1: must be 2"),
    "the first part twice": (lambda p: void(shutil.copy(p[0], p[1])), "split.no is 0: must be 1"),
    "a part of another model": (
        lambda p: _rewrite(p[1], lambda t: t.set("split.count", 2)),
        "split.count is 2",
    ),
    "a tensor in two parts": (lambda p: _rewrite(p[1], lambda t: None), "is in another part too"),
    "a whole model as a part": (lambda p: void(tiny_gguf.write(p[1])), "split.no is missing"),
    "too few tensors": (
        lambda p: _rewrite(p[1], lambda t: None, 0),
        "split.tensors.count is not the",
    ),
    "counts in place of one": (
        lambda p: _claim(p[0], np.array([1, 2], "<i4")),
        "split.tensors.count is not the",
    ),
    "no counts in place of one": (
        lambda p: _claim(p[0], np.array([], "<i4")),
        "split.tensors.count is not the",
    ),
}


def void(_: object) -> None:
    """Function that turns a lambda into a statement."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_parts_that_do_not_belong_together_are_refused_by_name(damage: str, tmp_path: Path) -> None:
    break_it, words = DAMAGES[damage]
    paths = tiny_gguf.write_parts(tmp_path, "m", 3)
    break_it(paths)
    with pytest.raises(EngineError) as caught:
        read_gguf(paths[0])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 290


def test_another_part_than_the_first_names_the_first(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "m", 3)
    with pytest.raises(
        EngineError, match=r"is part 2 of 3 of a model \(open m-00001-of-00003.gguf\)"
    ):
        read_gguf(paths[1])


def test_a_part_under_another_name_says_which_name_is_expected(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "m", 2)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(
        EngineError, match=r"split.count is 2, .* \(expected: NAME-00001-of-00002.gguf\)"
    ):
        read_gguf(renamed)

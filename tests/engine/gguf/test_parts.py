"""Models in several files are opened as one; a refusal names the wrong file."""

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


def test_a_model_in_three_files_has_the_tensors_of_one_file(tmp_path: Path) -> None:
    model = read_gguf(tiny_gguf.write(tmp_path / "whole.gguf"))
    split_model = read_gguf(tiny_gguf.write_parts(tmp_path, "m", 3)[0])
    weights = weights_of(model)
    split_weights = weights_of(split_model)
    assert split_weights.tensors.keys() == weights.tensors.keys()
    assert {info.part for info in split_model.tensors.values()} == {0, 1, 2}
    for name, tensor in weights.tensors.items():
        split_tensor = split_weights[name]
        assert ctypes.string_at(split_tensor.address, split_tensor.size_bytes) == ctypes.string_at(
            tensor.address, tensor.size_bytes
        )
        assert (split_weights.rows(name) == weights.rows(name)).all()
    assert split_weights.quantization_label() == weights.quantization_label()
    assert 0 < split_weights.resident_share() <= 1
    assert split_model.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("m-*.gguf"))


def test_a_model_in_several_files_needs_as_much_as_one_file(tmp_path: Path) -> None:
    needs = needs_of_file(tiny_gguf.write(tmp_path / "whole.gguf"))
    assert needs_of_file(tiny_gguf.write_parts(tmp_path, "m", 2)[0]) == needs


def test_a_copy_in_huge_pages_holds_every_part(tmp_path: Path) -> None:
    weights = validate(tiny_gguf.write_parts(tmp_path, "m", 3)[0]).weights
    copy = weights.copied_to_huge_pages(lambda done, total: None)
    assert all((copy.rows(name) == weights.rows(name)).all() for name in weights.tensors)


def test_a_change_of_any_file_is_detected(tmp_path: Path) -> None:
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
def test_a_file_of_a_split_model_is_recognised_by_name(
    file_name: str, parsed: PartName | None
) -> None:
    assert part_name(file_name) == parsed


def _rewrite(path: Path, change: Callable[[TinyGGUF], None], n_tensors: int = 2) -> None:
    file = TinyGGUF()
    file.set("split.no", 1)
    file.set("split.count", 3)
    file.tensors = tiny_gguf.model().tensors[:n_tensors]
    change(file)
    file.write(path)


def _claim(path: Path, n_tensors: Any) -> None:
    """Rewrite the first file with a different ``split.tensors.count``."""
    model = tiny_gguf.model()
    file = TinyGGUF(keys=list(model.keys), tensors=model.tensors[: len(model.tensors) // 3])
    file.set("split.no", 0)
    file.set("split.count", 3)
    file.set("split.tensors.count", n_tensors)
    file.write(path)


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
def test_files_of_different_models_are_refused_by_name(damage: str, tmp_path: Path) -> None:
    break_it, words = DAMAGES[damage]
    paths = tiny_gguf.write_parts(tmp_path, "m", 3)
    break_it(paths)
    with pytest.raises(EngineError) as caught:
        read_gguf(paths[0])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 290


def test_a_later_file_of_a_model_names_the_first(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "m", 3)
    with pytest.raises(
        EngineError, match=r"is part 2 of 3 of a model \(open m-00001-of-00003.gguf\)"
    ):
        read_gguf(paths[1])


def test_a_renamed_file_of_a_model_reports_the_expected_name(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "m", 2)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(
        EngineError, match=r"split.count is 2, .* \(expected: NAME-00001-of-00002.gguf\)"
    ):
        read_gguf(renamed)

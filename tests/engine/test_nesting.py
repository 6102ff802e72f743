"""Depth of foreign data, without recursion."""

from typing import Any

import pytest

from engine.nesting import is_nested_deeper


@pytest.mark.parametrize(
    ("value", "depth"),
    [(5, 0), ([], 1), ({"a": 1}, 1), ([1, [2], {}], 2), ({"a": [{"b": []}], "c": 1}, 4)],
)
def test_levels_of_lists_and_objects_are_counted(value: Any, depth: int) -> None:
    assert not is_nested_deeper(value, depth)
    assert depth == 0 or is_nested_deeper(value, depth - 1)


def test_a_value_without_end_is_deep() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert is_nested_deeper(endless, 100)

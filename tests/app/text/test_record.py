"""A record is what a frozen dataclass is."""

from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from app.text.record import record


@dataclass(frozen=True)
class _Frozen:
    name: str
    size: int = 3
    parts: tuple[str, ...] = field(default_factory=lambda: ("a",))


@record
class _Record:
    name: str
    size: int = 3
    parts: tuple[str, ...] = field(default_factory=lambda: ("a",))

    @property
    def double(self) -> int:
        return 2 * self.size


@record
class _Same:
    name: str
    size: int = 3
    parts: tuple[str, ...] = ("a",)


@record
class _ByName:
    name: str
    size: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByName) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@record
class _Odd:
    size: int
    values: tuple[int, ...] = ()
    named: dict[str, int] = field(default_factory=dict, kw_only=True)
    needed: str = field(kw_only=True)


def test_a_record_behaves_like_a_frozen_dataclass() -> None:
    for values in ({"name": "x"}, {"name": "y", "size": 5, "parts": ()}):
        # type: ignore[arg-type]
        one = _Record(**values)
        other = _Frozen(**values)
        assert repr(one).replace("_Record", "") == repr(other).replace("_Frozen", "")
        assert asdict(one) == asdict(other)
        assert [one.name for one in fields(one)] == [other.name for other in fields(other)]
    assert _Record("x", 4).double == 8


@pytest.mark.parametrize("kind", [_Record, _Frozen])
def test_what_is_missing_or_too_much_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        kind("x", 1, (), 2)


@pytest.mark.parametrize("kind", [_Record, _Frozen])
def test_no_field_changes(kind: Any) -> None:
    one = kind("x")
    with pytest.raises(FrozenInstanceError):
        one.name = "y"
    with pytest.raises(FrozenInstanceError):
        del one.size
    assert one == kind("x")


def test_records_of_one_kind_are_equal_by_their_values() -> None:
    assert _Record("x") == _Record("x", 3, ("a",))
    assert hash(_Record("x")) == hash(_Record("x", 3, ("a",)))
    assert _Record("x") != _Record("x", 4)
    assert _Record("x") != _Same("x")
    assert len({_Record("x"), _Record("x"), _Record("y")}) == 2


def test_a_changed_copy_leaves_the_first_as_it_is() -> None:
    one = _Record("x")
    assert replace(one, size=9) == _Record("x", 9)
    assert one.size == 3


def test_a_comparison_of_its_own_stays() -> None:
    assert _ByName("x", 1) == _ByName("x", 2)
    assert len({_ByName("x", 1), _ByName("x", 2)}) == 1


def test_record_fields_may_be_keyword_only_and_have_any_name() -> None:
    one = _Odd(1, needed="x")
    other = _Odd(2, (3,), named={"a": 1}, needed="y")
    assert asdict(one) == {"size": 1, "values": (), "named": {}, "needed": "x"}
    assert asdict(other) == {"size": 2, "values": (3,), "named": {"a": 1}, "needed": "y"}
    assert one.named is not _Odd(1, needed="x").named
    with pytest.raises(TypeError, match="needed"):
        _Odd(1)  # type: ignore[call-arg]


def test_nothing_is_compiled_before_the_first_one_is_made() -> None:
    @record
    class _Unused:
        name: str

    before = _Unused.__init__
    assert _Unused("x") == _Unused(name="x")
    assert _Unused.__init__ is not before

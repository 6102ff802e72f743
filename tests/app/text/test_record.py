"""Records, which behave like frozen dataclasses."""

from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from app.text.record import record


@dataclass(frozen=True)
class _Frozen:
    name: str
    size: int = 3
    labels: tuple[str, ...] = field(default_factory=lambda: ("a",))


@record
class _Record:
    name: str
    size: int = 3
    labels: tuple[str, ...] = field(default_factory=lambda: ("a",))

    @property
    def double(self) -> int:
        return 2 * self.size


@record
class _Same:
    name: str
    size: int = 3
    labels: tuple[str, ...] = ("a",)


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
    options: dict[str, int] = field(default_factory=dict, kw_only=True)
    needed: str = field(kw_only=True)


def test_a_record_behaves_like_a_frozen_dataclass() -> None:
    for values in ({"name": "x"}, {"name": "y", "size": 5, "labels": ()}):
        # type: ignore[arg-type]
        record_ = _Record(**values)
        frozen_ = _Frozen(**values)
        assert repr(record_).replace("_Record", "") == repr(frozen_).replace("_Frozen", "")
        assert asdict(record_) == asdict(frozen_)
        assert [record_.name for record_ in fields(record_)] == [
            frozen_.name for frozen_ in fields(frozen_)
        ]
    assert _Record("x", 4).double == 8


@pytest.mark.parametrize("record_class", [_Record, _Frozen])
def test_missing_and_extra_arguments_are_refused(record_class: Any) -> None:
    with pytest.raises(TypeError):
        record_class()
    with pytest.raises(TypeError):
        record_class("x", 1, (), 2)


@pytest.mark.parametrize("record_class", [_Record, _Frozen])
def test_fields_cannot_be_changed(record_class: Any) -> None:
    instance = record_class("x")
    with pytest.raises(FrozenInstanceError):
        instance.name = "y"
    with pytest.raises(FrozenInstanceError):
        del instance.size
    assert instance == record_class("x")


def test_records_of_one_class_are_equal_by_value() -> None:
    assert _Record("x") == _Record("x", 3, ("a",))
    assert hash(_Record("x")) == hash(_Record("x", 3, ("a",)))
    assert _Record("x") != _Record("x", 4)
    assert _Record("x") != _Same("x")
    assert len({_Record("x"), _Record("x"), _Record("y")}) == 2


def test_a_changed_copy_does_not_change_the_original() -> None:
    instance = _Record("x")
    assert replace(instance, size=9) == _Record("x", 9)
    assert instance.size == 3


def test_a_custom_comparison_is_preserved() -> None:
    assert _ByName("x", 1) == _ByName("x", 2)
    assert len({_ByName("x", 1), _ByName("x", 2)}) == 1


def test_record_fields_may_be_keyword_only_and_have_any_name() -> None:
    instance = _Odd(1, needed="x")
    second = _Odd(2, (3,), options={"a": 1}, needed="y")
    assert asdict(instance) == {"size": 1, "values": (), "options": {}, "needed": "x"}
    assert asdict(second) == {"size": 2, "values": (3,), "options": {"a": 1}, "needed": "y"}
    assert instance.options is not _Odd(1, needed="x").options
    with pytest.raises(TypeError, match="needed"):
        _Odd(1)  # type: ignore[call-arg]


def test_nothing_is_compiled_before_the_first_record_exists() -> None:
    @record
    class _Unused:
        name: str

    earlier_init = _Unused.__init__
    assert _Unused("x") == _Unused(name="x")
    assert _Unused.__init__ is not earlier_init

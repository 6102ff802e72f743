"""Records: frozen dataclasses that are created ten times as fast.

For a frozen dataclass Python compiles five functions, which takes 1 ms on a slow machine, and a
hundred of them are needed before the first frame. Here only ``__init__`` is compiled, with the
first instance; the other methods are shared.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: Any) -> Any:
        """Tell type checkers what the decorator does."""
        return lambda decorate: decorate


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class like ``dataclass(frozen=True)``, for ``fields``, ``replace`` and ``asdict``,
    too.

    Fields are set once, by ``__init__``. Setting or deleting them later raises FrozenInstanceError.
    """
    # otherwise dataclass writes one from the signature of ``__init__``
    cls.__doc__ = cls.__doc__ or cls.__name__
    decorated = dataclass(init=False, eq=False, repr=False)(cls)
    decorated.__init__ = _compiled_later(decorated)  # type: ignore[method-assign]
    for method in (_setattr, _delattr, _eq, _hash, _repr):
        name = f"__{method.__name__.lstrip('_')}__"
        if name not in vars(cls):
            setattr(decorated, name, method)
    return decorated


def _compiled_later(cls: type[Any]) -> Any:
    def __init__(self: Any, *values: Any, **options: Any) -> None:
        cls.__init__ = _compile_init(cls)
        cls.__init__(self, *values, **options)

    return __init__


def _compile_init(cls: type[Any]) -> Any:
    positional, keyword_only = (
        [_parameter(field_) for field_ in fields(cls) if field_.kw_only is is_keyword_only]
        for is_keyword_only in (False, True)
    )
    parameters = ", ".join(["self", *positional, *(["*", *keyword_only] if keyword_only else [])])
    body = "".join(f"\n    __kept[{field_.name!r}] = {_value(field_)}" for field_ in fields(cls))
    scope: dict[str, Any] = {f"default_{field_.name}": field_.default for field_ in fields(cls)}
    scope |= {f"make_{field_.name}": field_.default_factory for field_ in fields(cls)}
    # dataclasses do the same
    exec(f"def __init__({parameters}):\n    __kept = self.__dict__{body}", scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _parameter(field_: Field[Any]) -> str:
    has_default = field_.default is not MISSING or field_.default_factory is not MISSING
    if has_default:
        return f"{field_.name}=default_{field_.name}"
    return field_.name


def _value(field_: Field[Any]) -> str:
    if field_.default_factory is MISSING:
        return field_.name
    return f"make_{field_.name}() if {field_.name} is default_{field_.name} else {field_.name}"


def _setattr(self: Any, name: str, value: Any) -> None:
    values = self.__dict__
    if name in values:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    values[name] = value


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _eq(self: Any, value: object) -> Any:
    if value.__class__ is not self.__class__:
        return NotImplemented
    return self is value or self.__dict__ == value.__dict__


def _hash(self: Any) -> int:
    return hash(tuple(self.__dict__.values()))


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
    return f"{type(self).__qualname__}({values})"

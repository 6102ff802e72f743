"""Parts of Office documents, parsed.

Names come without namespaces; those of formulas begin with ``m:``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.parsers import expat

from app.program.refusals import Refusal

Attributes = dict[str, str]


def parse_part(
    raw: bytes,
    begin: Callable[[str, Attributes], None],
    end: Callable[[str], None] | None = None,
    letters: Callable[[str], None] | None = None,
) -> None:
    """Parse XML; names come without their namespaces.

    Raises:
        Refusal: it declares entities.
        ExpatError: it is damaged.
    """

    def refuse_entity(*_: Any) -> None:
        raise Refusal("declares entities, which no document needs")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, given: begin(
        _local(name), {key.rpartition(" ")[2]: given[key] for key in given}
    )
    if end is not None:
        ended = end
        parser.EndElementHandler = lambda name: ended(_local(name))
    parser.CharacterDataHandler = letters
    parser.EntityDeclHandler = refuse_entity
    parser.Parse(raw, True)


def _local(name: str) -> str:
    space, _, local = name.rpartition(" ")
    if space.endswith("/math"):
        return f"m:{local}"
    return local

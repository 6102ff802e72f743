"""Parsing of Office XML parts. Names have no namespaces; those of formulas begin with ``m:``."""

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
    """Parse XML and report elements and text; names have no namespaces.

    Raises:
        Refusal: the XML declares entities.
        ExpatError: the XML is damaged.
    """

    def refuse_entity(*_: Any) -> None:
        raise Refusal("declares XML entities (save it again in its own program)")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, attributes: begin(
        _local(name), {key.rpartition(" ")[2]: attributes[key] for key in attributes}
    )
    if end is not None:
        end_element = end
        parser.EndElementHandler = lambda name: end_element(_local(name))
    parser.CharacterDataHandler = letters
    parser.EntityDeclHandler = refuse_entity
    parser.Parse(raw, True)


def _local(name: str) -> str:
    space, _, local = name.rpartition(" ")
    if space.endswith("/math"):
        return f"m:{local}"
    return local

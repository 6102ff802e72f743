"""Presets of ``/persona`` and ``/preset``: a system prompt together with parameters of generation."""

from __future__ import annotations

from app.chat.generation import GenerationChoice
from app.program.personas import Persona, how_to_add, load_persona, persona_names, save_persona

SAVE = "save"


def listed() -> str:
    """Name all personas in a line."""
    names = ", ".join(persona_names())
    if names:
        return f"personas and presets: {names} (/persona NAME; /preset save NAME keeps what is set as one)"
    return f"there are no personas or presets ({how_to_add()}, or: /preset save NAME)"


def chosen(wanted: str, generation: GenerationChoice | None) -> tuple[Persona, str]:
    """Take a persona's parameters from the next message on; returns it with a line on them, "" for none.

    Raises:
        Refusal: there is none with this name, or it cannot be used; nothing is changed.
    """
    persona = load_persona(wanted)
    if generation is None or not persona.parameters:
        return persona, ""
    generation.adopt(persona.parameters)
    return persona, generation.described()


def saved(wanted: str, system: str | None, generation: GenerationChoice | None) -> str | None:
    """Do what ``save NAME`` asks for; returns the line that says so, None for anything else.

    Raises:
        Refusal: it is not kept.
    """
    word, _, name = wanted.partition(" ")
    if word.lower() != SAVE or not name.strip():
        return None
    return save_persona(name.strip(), Persona(system or "", generation.differing if generation is not None else {}))

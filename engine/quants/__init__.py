"""Quantised types, a module each. Importing this package imports none of them."""

from engine.quants.base import QUANT_TYPES

QUANTS: dict[str, str] = {name: f"engine.quants.{name.lower()}" for name in QUANT_TYPES}
"""Module of each type, by name."""

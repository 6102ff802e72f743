"""A plugin that gives attention registers of 512 bits on any processor: slow there, and as right."""

from engine.machine import level
from tests.engine import compiles_all as compiles_all

level.HAS_VNNI_512 = True

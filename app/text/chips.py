"""Chips: short pieces of text in a prompt that stand for a whole paste or file until the message is
sent.

They are written with no-break spaces: they look like any text, and nothing that is typed is
mistaken for one.
"""

import re

NBSP = "\u00a0"
CHIP = re.compile(rf"\[(?:pasted|file){NBSP}(\d{{1,6}}):[^\[\]\n]{{1,60}}\]")
"""A chip, and its number."""

"""Chips: short pieces of text in a prompt that stand for a whole paste or file until the message is
sent.

Their no-break spaces tell them from typed text.
"""

import re

NBSP = "\u00a0"
CHIP = re.compile(rf"\[(?:pasted|file){NBSP}(\d{{1,6}}):[^\[\]\n]{{1,60}}\]")
"""A chip with its number."""

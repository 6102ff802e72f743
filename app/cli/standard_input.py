"""Text that comes through a pipe: read within bounds, with a word where it is waited for."""

from __future__ import annotations

import os
import select
import sys
import time

from app.program import exit_codes
from app.program.refusals import Refusal, say

MOST_INPUT_BYTES = 128 << 20
WORD_S = 1.0
"""Seconds after which a line says what is waited for."""
PATIENCE_S = 5.0
"""Seconds that a prompt of the command line waits for standard input.

After so long without a byte, it is answered without standard input.
"""
_READ_BYTES = 1 << 16


def read_standard_input(is_needed: bool) -> str:
    """Return what comes through standard input, up to its end.

    Args:
        is_needed: whether there is nothing to do without it; else a pipe in which nothing comes
            counts as empty.

    Raises:
        Refusal: there is too much.
    """
    try:
        handle = sys.stdin.buffer.fileno()
    except (OSError, ValueError, AttributeError):
        return _text(sys.stdin.buffer.read(MOST_INPUT_BYTES + 1))
    content = bytearray()
    begun_s = time.monotonic()
    has_told = False
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while len(content) <= MOST_INPUT_BYTES:
        waits = not poll.poll(1000 * (PATIENCE_S if has_told else WORD_S))
        waited_s = time.monotonic() - begun_s
        if not has_told and (waits or waited_s >= WORD_S):
            has_told = True
            _tell(is_needed or bool(content))
        elif waits and not content and not is_needed:
            say(
                "jalopy run: nothing came through standard input: the prompt is answered without it"
            )
            break
        if waits:
            continue
        piece = os.read(handle, _READ_BYTES)
        if not piece:
            break
        content += piece
    return _text(bytes(content))


def _tell(is_awaited: bool) -> None:
    if is_awaited:
        say(
            "jalopy run: reading standard input until it ends "
            "(Ctrl-D ends what is typed, Ctrl-C everything)"
        )
    else:
        say(
            f"jalopy run: waiting {PATIENCE_S:g} s for standard input, which is open "
            "(< /dev/null for none)"
        )


def _text(content: bytes) -> str:
    if len(content) > MOST_INPUT_BYTES:
        limit = f"{MOST_INPUT_BYTES >> 20} MiB"
        raise Refusal(
            f"jalopy run: standard input is larger than {limit} (cut it first)", exit_codes.BAD_DATA
        )
    return content.decode("utf-8", "replace")

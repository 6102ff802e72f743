"""Text from standard input, with limits on size and time and a line about waiting."""

from __future__ import annotations

import os
import select
import sys
import time

from app.program import exit_codes
from app.program.refusals import Refusal, say

MAX_INPUT_BYTES = 128 << 20
NOTICE_S = 1.0
"""Seconds of waiting after which a line says so."""
TIMEOUT_S = 5.0
"""Seconds without a byte after which a prompt on the command line is answered without standard
input."""
_READ_BYTES = 1 << 16


def read_standard_input(is_needed: bool) -> str:
    """Return the text of standard input.

    Args:
        is_needed: whether the command needs the text; otherwise a silent pipe counts as empty.

    Raises:
        Refusal: the text is too long.
    """
    try:
        handle = sys.stdin.buffer.fileno()
    except (OSError, ValueError, AttributeError):
        return _text(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1))
    content = bytearray()
    started_s = time.monotonic()
    has_notice = False
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while len(content) <= MAX_INPUT_BYTES:
        is_waiting = not poll.poll(1000 * (TIMEOUT_S if has_notice else NOTICE_S))
        waited_s = time.monotonic() - started_s
        if not has_notice and (is_waiting or waited_s >= NOTICE_S):
            has_notice = True
            _say_waiting(is_needed or bool(content))
        elif is_waiting and not content and not is_needed:
            say("jalopy run: standard input stayed empty; answering without it")
            break
        if is_waiting:
            continue
        piece = os.read(handle, _READ_BYTES)
        if not piece:
            break
        content += piece
    return _text(bytes(content))


def _say_waiting(is_needed: bool) -> None:
    if is_needed:
        say(
            "jalopy run: reading standard input until it ends "
            "(Ctrl-D ends your input, Ctrl-C stops the program)"
        )
    else:
        say(
            f"jalopy run: standard input is open, waiting {TIMEOUT_S:g} s for text "
            "(< /dev/null avoids this)"
        )


def _text(content: bytes) -> str:
    if len(content) > MAX_INPUT_BYTES:
        limit = f"{MAX_INPUT_BYTES >> 20} MiB"
        raise Refusal(
            f"jalopy run: standard input is larger than {limit} (shorten it)", exit_codes.BAD_DATA
        )
    return content.decode("utf-8", "replace")

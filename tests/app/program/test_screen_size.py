"""Impossible terminal sizes, which must not take memory."""

import fcntl
import os
import pty
import struct
import termios

import pytest

from app.program import notices
from app.program.screen_size import MOST_COLUMNS, MOST_LINES, bounded_size, ignore_impossible_sizes
from app.tui.terminal_input import TerminalDriver
from tests.app.chat_driver import chatting


@pytest.mark.parametrize(
    "value", ["99999999", "2000", "0", "-1", "", "wide", "8e1", "\u0663\u0664", "9" * 5000, " 80"]
)
def test_an_impossible_size_is_removed_from_the_environment(value):
    environment = {"COLUMNS": value, "LINES": value, "HOME": "/"}
    ignore_impossible_sizes(environment)
    assert environment == {"HOME": "/"}
    assert all(line.isprintable() and len(line) < 120 for line in notices.take_all())


def test_a_possible_size_stays_and_a_huge_one_is_reported():
    environment = {"COLUMNS": str(MOST_COLUMNS), "LINES": "99999999"}
    ignore_impossible_sizes(environment)
    assert environment == {"COLUMNS": str(MOST_COLUMNS)}
    assert notices.take_all() == [
        "environment variable LINES is ignored: '99999999' (allowed: 1 to 999)"
    ]


def test_sizes_have_a_minimum_and_a_maximum():
    assert bounded_size(65535, 65535) == (MOST_COLUMNS, MOST_LINES)
    assert bounded_size(0, -1) == (1, 1)
    assert bounded_size(80, 25) == (80, 25)


async def test_a_huge_terminal_is_drawn_within_limits(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    own_end, terminal_end = pty.openpty()
    try:
        fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 65535, 65535, 0, 0))
        monkeypatch.setattr("sys.__stdout__", os.fdopen(os.dup(terminal_end), "w"))
        async with chatting() as driver:
            terminal = TerminalDriver(driver.app)
            assert terminal._get_terminal_size() == (MOST_COLUMNS, MOST_LINES)
            assert terminal._size == (MOST_COLUMNS, MOST_LINES)
    finally:
        os.close(own_end)
        os.close(terminal_end)

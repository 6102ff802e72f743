"""A terminal's screen: as much of one as the chat uses, with the modes that must be left as they
were."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from rich.cells import get_character_cell_size

_TOKEN = re.compile(
    r"\x1b\[(?P<prefix>[?<>=]?)(?P<numbers>[\d;:]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|\x1b[\]P_^X](?s:.*?)(?:\x07|\x1b\\)"
    r"|\x1b[()][A-Za-z0-9]|\x1b[=>78DEMc]"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
)
_MOST_PAINTED_CHARS = 1 << 20
OFF_AFTERWARDS = (1000, 1002, 1003, 1004, 1006, 1015, 1016, 1049, 2004, 2026, 2048)
"""Private modes that no program leaves on."""
ON_AFTERWARDS = (7, 25)


class Screen:
    """A grid of cells that output is fed to.

    Attributes:
        painted: the text that came, without its places; cut at the front when it is long.
        private: modes by number, as they were switched last.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self.painted = ""
        self.private: dict[int, bool] = {}
        self._kitty_depths = {False: 0, True: 0}
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """Begin with an empty grid: what is on it afterwards was painted for this size."""
        self.columns = columns
        self.n_rows = rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0

    def feed(self, output: bytes) -> None:
        """Take what the program wrote, cut anywhere."""
        text = self._pending + self._decoder.decode(output)
        index = 0
        while index < len(text):
            match = _TOKEN.match(text, index)
            if match is None:
                if len(text) - index < 4096:
                    break  # the rest of a sequence is still to come
                index += 1
                continue
            index = match.end()
            self._take(match)
        self._pending = text[index:]
        if len(self.painted) > _MOST_PAINTED_CHARS:
            self.painted = self.painted[-_MOST_PAINTED_CHARS // 2 :]

    def rows(self) -> list[str]:
        """Return the rows as text, without the blanks at their ends."""
        return ["".join(row).rstrip() for row in self._cells]

    def modes_left(self) -> list[str]:
        """Return what is not as it was before any program ran."""
        modes = [f"mode {mode} is on" for mode in OFF_AFTERWARDS if self.private.get(mode)]
        modes += [
            f"mode {mode} is off" for mode in ON_AFTERWARDS if not self.private.get(mode, True)
        ]
        if self._kitty_depths[False]:
            modes.append("keyboard flags are left on the main screen")
        return modes

    def _take(self, match: re.Match[str]) -> None:
        if text := match["text"]:
            self._put(text)
        elif control := match["control"]:
            self._control(control)
        elif final := match["final"]:
            numbers = [int(n) if n else 0 for n in match["numbers"].replace(":", ";").split(";")]
            self._sequence(match["prefix"], numbers, match["between"], final)

    def _put(self, text: str) -> None:
        self.painted += text
        for character in text:
            width = get_character_cell_size(character)
            if width == 0:
                continue
            if self._column + width > self.columns:
                self._column = 0
                self._row = min(self._row + 1, self.n_rows - 1)
            for offset in range(min(width, self.columns - self._column)):
                self._cells[self._row][self._column + offset] = "" if offset else character
            self._column += width

    def _control(self, control: str) -> None:
        if control == "\n":
            self._row = min(self._row + 1, self.n_rows - 1)
            self.painted += "\n"
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, self._column - 1)

    def _sequence(self, prefix: str, numbers: Sequence[int], between: str, final: str) -> None:
        if prefix == "?" and final in "hl" and not between:
            for number in numbers:
                self._switch(number, final == "h")
        elif final == "u" and prefix in "<>" and prefix:
            alternate = self.private.get(1049, False)
            depth = self._kitty_depths[alternate] + (1 if prefix == ">" else -max(1, numbers[0]))
            self._kitty_depths[alternate] = max(0, depth)
        elif prefix or between:
            return
        elif final in "Hf":
            self._row = min(max(numbers[0], 1), self.n_rows) - 1
            self._column = min(max(numbers[1] if len(numbers) > 1 else 1, 1), self.columns) - 1
            self.painted += "\n"
        elif final == "J":
            self._erase(0, 0, self.n_rows) if numbers[0] else self._erase(
                self._column, self._row, self.n_rows
            )
        elif final == "K":
            self._erase(0 if numbers[0] else self._column, self._row, self._row + 1)
        elif final == "A":
            self._row = max(0, self._row - max(1, numbers[0]))
        elif final == "B":
            self._row = min(self.n_rows - 1, self._row + max(1, numbers[0]))
        elif final == "C":
            self._column = min(self.columns - 1, self._column + max(1, numbers[0]))
        elif final == "D":
            self._column = max(0, self._column - max(1, numbers[0]))

    def _switch(self, mode: int, is_on: bool) -> None:
        self.private[mode] = is_on
        if mode == 1049:
            if is_on:
                self._kitty_depths[True] = 0
            self._erase(0, 0, self.n_rows)

    def _erase(self, column: int, first_row: int, end_row: int) -> None:
        for row in range(first_row, end_row):
            start = column if row == first_row else 0
            self._cells[row][start:] = [" "] * (self.columns - start)

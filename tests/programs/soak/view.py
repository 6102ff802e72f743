"""State read off the painted chat: whether it waits for the user, its messages, which reply is
finished."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import get_character_cell_size

_SPEAKER = re.compile(r" ?[ >-]?(you|model)(?: |$)")
_FOOTER_END = re.compile(r"([\d,]+) tokens? · (?:[\d.,]+ tok/s|first word after)")
_RATE = re.compile(r" *(?:[\d.,]+|-) tok/s")
"""Begins the status line in rest and while a reply is written; the word for the state is left out
in want of room."""
_MARKDOWN_SIGNS = "<[`~&#.)"
_BODY_COLUMN = 8
"""First column of a message's text."""
_CHAT_COLUMNS = 110
"""Largest width of the conversation, which is centred on a wider screen."""
PROMPT_TOP = "╭"
PROMPT_BOTTOM = "╰"


def letters(text: str) -> str:
    """Return what of a text stays the same however it is wrapped and decorated."""
    return "".join(
        character
        for character in text
        if character.isalnum() and get_character_cell_size(character)
    )


def is_seen_in(seen: str, saved: str) -> bool:
    """Whether letters that were painted are those of a saved text, or a part of them.

    Of a text with signs of Markdown some letters are not painted, such as the address of a link,
    and numbers of a list are others: then the order of the rest is what counts.
    """
    saved_letters = letters(saved)
    if seen in saved_letters:
        return True
    if not any(sign in saved for sign in _MARKDOWN_SIGNS):
        return False
    remaining = iter(saved_letters)
    return all(letter.isdigit() or letter in remaining for letter in seen)


@dataclass
class Block:
    """Message on the screen; ``has_top`` is false if it begins above the screen."""

    who: str
    rows: list[str] = field(default_factory=list)
    has_top: bool = True

    @property
    def text(self) -> str:
        """Rows of the message, joined."""
        return " ".join(self.rows)

    @property
    def n_tokens(self) -> int | None:
        """Number of tokens of a finished reply; None for any other message."""
        match = _FOOTER_END.search(self.text)
        return int(match[1].replace(",", "")) if match and self.who == "model" else None

    @property
    def reply_letters(self) -> str:
        """Text of a finished reply, without figures and notes."""
        end = len(self.rows)
        for index, row in enumerate(self.rows):
            if "tokens" in (pair := " ".join(self.rows[index : index + 2])) or "1 token" in pair:
                match = _FOOTER_END.search(pair)
                if match and re.match(r"[\d,]+ tokens? · |\(empty|\(no answer", row):
                    end = index
                    break
        return letters(" ".join(self.rows[:end]))


class View:
    """The chat screen as rows of text."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = rows
        tops = [index for index, row in enumerate(rows) if row.startswith(PROMPT_TOP)]
        bottoms = [index for index, row in enumerate(rows) if row.startswith(PROMPT_BOTTOM)]
        self._top = tops[-1] if tops else len(rows)
        self._bottom = bottoms[-1] if bottoms else len(rows)
        self.status = next((row for row in reversed(rows) if row), "")

    @property
    def is_chat(self) -> bool:
        """Whether the chat's prompt is seen whole, and no other screen."""
        return self._top < self._bottom < len(self.rows) and self.rows[0].lstrip().startswith(
            "jalopy"
        )

    @property
    def prompt(self) -> str:
        """Text in the prompt's box."""
        return "\n".join(row.strip("│ ") for row in self.rows[self._top + 1 : self._bottom])

    @property
    def edge(self) -> str:
        """Text at the prompt's upper edge."""
        return self.rows[self._top] if self._top < len(self.rows) else ""

    @property
    def is_free(self) -> bool:
        """Whether the engine has nothing to do and no message waits."""
        busy = self._bottom < len(self.rows) and "stops the reply" in self.rows[self._bottom]
        waits = any("queued · " in row for row in self.rows[: self._top])
        return bool(_RATE.match(self.status)) and not busy and not waits

    @property
    def is_writing(self) -> bool:
        """Whether a reply can be stopped."""
        return self._bottom < len(self.rows) and "stops the reply" in self.rows[self._bottom]

    @property
    def has_empty_prompt(self) -> bool:
        """Whether nothing is typed."""
        return self.prompt.strip().startswith("Type here")

    @property
    def is_home(self) -> bool:
        """Whether the chat waits for the user, who is in an empty prompt."""
        return (
            self.is_chat and self.is_free and "Enter sends" in self.edge and self.has_empty_prompt
        )

    @property
    def _transcript(self) -> list[str]:
        margin = max(0, len(self.edge.rstrip()) - 1 - _CHAT_COLUMNS) // 2
        return [row[margin:] for row in self.rows[1 : self._top]]

    @property
    def has_focus_on_message(self) -> bool:
        """Whether the keys are for a message."""
        return any(row[:3].lstrip(" ▌").startswith(">") for row in self._transcript)

    @property
    def blocks(self) -> list[Block]:
        """The messages above the prompt, as far as they are seen."""
        blocks: list[Block] = []
        for row in self._transcript:
            speaker = _SPEAKER.match(row)
            if speaker:
                blocks.append(Block(speaker[1]))
            elif not blocks:
                blocks.append(Block("", has_top=False))
            blocks[-1].rows.append(row[_BODY_COLUMN:].strip())
        return blocks

    def shows(self, word: str) -> bool:
        """Whether a word is seen above the prompt."""
        return any(word in row for row in self.rows[: self._top])

    @property
    def last_reply(self) -> Block | None:
        """The reply at the end, if that is what stands there; its beginning may be out of sight."""
        blocks = self.blocks
        last = blocks[-1] if blocks else None
        if last is not None and not last.who and len(blocks) == 1 and _FOOTER_END.search(last.text):
            last.who = "model"
        return last if last is not None and last.who == "model" else None

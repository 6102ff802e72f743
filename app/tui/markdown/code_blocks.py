"""Text for ``/copy``: a reply, one of its code blocks, or its thinking. Knows no screen."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage
from app.program.refusals import Refusal
from app.text.record import record


def code_blocks(markdown: str) -> list[str]:
    """Return the fenced blocks in order, as they would be typed; one that is still open counts."""
    # Not with the module: it is imported with the chat, and the parser would hold up the first
    # frame.
    from app.tui.markdown.parser import tree_of

    return [
        node.content.removesuffix("\n") for node in tree_of(markdown).walk() if node.type == "fence"
    ]


@record
class CopyText:
    """A text, and how it is called; "" for a whole reply."""

    text: str
    name: str = ""
    to_file: bool = False


def wanted_text(reply: ChatMessage | None, what: str) -> CopyText:
    """Return what is asked for after ``/copy``, or raise ``Refusal``."""
    asked = what.lower().split()
    words = [word for word in asked if word != "file"]
    to_file = "file" in asked
    if reply is None:
        raise Refusal("there is no reply to copy")
    if not words:
        return CopyText(
            reply.text or (reply.thinking.text if reply.thinking else ""), to_file=to_file
        )
    if words == ["thinking"]:
        if reply.thinking is None:
            raise Refusal("there is no thinking in the last reply")
        return CopyText(reply.thinking.text.strip(), to_file=to_file)
    if words[0] == "code" and len(words) <= 2:
        return wanted_block(reply.text, words[1] if len(words) == 2 else "1", to_file)
    ways = "/copy · /copy code · /copy code 2 · /copy thinking"
    raise Refusal(f"usage: {ways}; with `file` after it into a file")


def wanted_block(text: str, number: str, to_file: bool = False) -> CopyText:
    """Return one code block of a text, counted from 1; raises ``Refusal`` where no block has this
    number."""
    blocks = code_blocks(text)
    if not blocks:
        raise Refusal("there is no code block in this message")
    if not (number.isdecimal() and 1 <= int(number) <= len(blocks)):
        raise Refusal(f"there are code blocks 1 to {len(blocks)}")
    return CopyText(blocks[int(number) - 1], f"code block {int(number)} of {len(blocks)}", to_file)

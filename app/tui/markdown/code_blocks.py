"""Text for ``/copy``: a reply, one of its code blocks, or its thinking."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage
from app.program.refusals import Refusal
from app.text.record import record


def code_blocks(markdown: str) -> list[str]:
    """Return the fenced code blocks in order, including an unfinished one."""
    # Imported here because the parser would delay the first frame.
    from app.tui.markdown.parser import tree_of

    return [
        node.content.removesuffix("\n") for node in tree_of(markdown).walk() if node.type == "fence"
    ]


@record
class CopyText:
    """Text to copy, with its name, which is empty for an entire reply."""

    text: str
    name: str = ""
    to_file: bool = False


def text_to_copy(reply: ChatMessage | None, selection: str) -> CopyText:
    """Return the text that the argument of ``/copy`` selects.

    Raises:
        Refusal: There is no such text, or the argument is wrong.
    """
    words = selection.lower().split()
    names = [word for word in words if word != "file"]
    to_file = "file" in words
    if reply is None:
        raise Refusal("there is no reply to copy")
    if not names:
        return CopyText(
            reply.text or (reply.thinking.text if reply.thinking else ""), to_file=to_file
        )
    if names == ["thinking"]:
        if reply.thinking is None:
            raise Refusal("there is no thinking in the last reply")
        return CopyText(reply.thinking.text.strip(), to_file=to_file)
    if names[0] == "code" and len(names) <= 2:
        return block_to_copy(reply.text, names[1] if len(names) == 2 else "1", to_file)
    ways = "/copy · /copy code · /copy code 2 · /copy thinking"
    raise Refusal(f"usage: {ways}; with `file` after it into a file")


def block_to_copy(text: str, number: str, to_file: bool = False) -> CopyText:
    """Return a code block of a text by its number, counted from 1.

    Raises:
        Refusal: No code block has this number.
    """
    blocks = code_blocks(text)
    if not blocks:
        raise Refusal("there is no code block in this message")
    if not (number.isdecimal() and 1 <= int(number) <= len(blocks)):
        raise Refusal(f"there are code blocks 1 to {len(blocks)}")
    return CopyText(blocks[int(number) - 1], f"code block {int(number)} of {len(blocks)}", to_file)

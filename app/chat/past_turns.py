"""What was said before, in a model's own tokens: the ids that were generated, where they mean the same here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from app.conversations.conversation import PastTurn
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer


def take_over(chat: ChatPrompt, tokenizer: Tokenizer, turns: Sequence[PastTurn], tags: Collection[int] = ()) -> None:
    """Put questions and replies into a conversation that has none yet, in this model's tokens.

    What the template refuses stands there all the same: turns count here as on the screen, and it is the next prompt
    that is refused, until the user changes the message.

    Args:
        tags: control tokens that are part of the text.
    """
    is_refused = False
    for turn in turns:
        is_refused = is_refused or not _renders(chat, turn.question)
        if is_refused:
            chat.add_unrendered(turn.question)
        if _says(tokenizer, turn, tags):
            chat.add_reply(list(turn.ids), turn.raw)
        else:
            chat.add_reply(tokenizer.encode(turn.reply, bos=False, special=False), turn.reply)


def _renders(chat: ChatPrompt, question: str) -> bool:
    """Add a question; False where the template refuses the conversation so far, which is as before then."""
    try:
        chat.add_user(question)
    except EngineError:
        return False
    return True


def _says(tokenizer: Tokenizer, turn: PastTurn, tags: Collection[int]) -> bool:
    """Whether a reply's tokens are tokens of this vocabulary: they say here what they said there.

    A cache that holds them need not read them again then; other tokens for the same text would not be found in it.
    """
    if not turn.ids or max(turn.ids) >= tokenizer.vocab_size:
        return False
    stream = tokenizer.stream(tags)
    said = "".join(stream.push(token_id) for token_id in turn.ids)
    # What the engine held back last may be missing on either side.
    return said.startswith(turn.raw) or (bool(said) and turn.raw.startswith(said))

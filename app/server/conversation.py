"""The conversation that requests go on with: each sends all of it, and the tokens of what stays are kept.

A reply that comes back word for word keeps the tokens that the model wrote, its thought included, so that the cache
still holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.server.messages import ASSISTANT, SYSTEM, TOOL, USER, Said
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.tools.calls import CallResult, ToolCall

if TYPE_CHECKING:
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer


class ServedConversation:
    """The tokens of the last conversation. Used by the engine's thread alone."""

    def __init__(self, chat: ChatPrompt, tokenizer: Tokenizer) -> None:
        self.chat, self._tokenizer = chat, tokenizer
        self._said: list[Said] = []
        """The messages of ``chat``, as clients have them: a reply without its thought."""

    def prompt_ids(
        self, said: Sequence[Said], thinking: ThinkingMode, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens up to where the reply begins. Raises EngineError: the template refuses the conversation."""
        n_same = _n_same(self._said, said)
        try:
            self._keep(said, n_same)
            self.chat.thinking, self.chat.tools = thinking, tools
            return self.chat.prompt_ids()
        except BaseException:
            self._said = []
            self.chat.start(None)
            raise

    def note_reply(
        self, ids: Sequence[int], raw: str, answer: str, calls: Sequence[ToolCall] = (), before_calls: str = ""
    ) -> None:
        """The conversation has a reply.

        Args:
            raw: the ids decoded, with the thought and the calls.
            answer: what the client has of it.
            calls: the same.
            before_calls: what stands before them, with the thought.
        """
        self.chat.add_reply(list(ids), raw, calls, before_calls if calls else None)
        self._said.append(Said(ASSISTANT, answer, tuple(calls)))

    def _keep(self, said: Sequence[Said], n_same: int) -> None:
        if n_same:
            self.chat.rewind(n_same)
        else:
            self.chat.start(said[0].text if said[0].role == SYSTEM else None)
            n_same = 1 if said[0].role == SYSTEM else 0
        self._said = list(said)
        calls = {call.call_id: call for one in said[:n_same] for call in one.calls}
        for one in said[n_same:]:
            if one.role == USER:
                self.chat.add_unrendered(one.text)
            elif one.role == TOOL:
                self.chat.add_results([CallResult(calls[one.call_id].name, one.text, one.call_id)])
            else:
                ids = self._tokenizer.encode(one.text, bos=False, special=False)
                self.chat.add_reply(ids, one.text, one.calls)
                calls |= {call.call_id: call for call in one.calls}


def _n_same(kept: Sequence[Said], said: Sequence[Said]) -> int:
    """Return how many messages are the same; clients may trim replies."""
    n = 0
    for one, other in zip(kept, said, strict=False):
        is_reply = one.role == other.role == ASSISTANT
        same_text = one.text == other.text or (is_reply and one.text.strip() == other.text.strip())
        if one.role != other.role or not same_text or (one.calls, one.call_id) != (other.calls, other.call_id):
            break
        n += 1
    return n

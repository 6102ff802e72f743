"""The exact tokens of a conversation: appended to turn by turn, and tokenised again only where
necessary.

Each turn renders the whole conversation and tokenises only the text after that of the last turn;
generated replies keep the ids that the model produced. Where a template rewrites earlier turns (it
may strip old thinking), the tokens up to the last safe place before the difference are kept and the
rest is tokenised again.

Text of messages never becomes a control token: before rendering, the first character of every
spelled-out control token is swapped for a private-use character, and swapped back after the
rendered text was cut at the genuine ones. The exceptions are control tokens that the model itself
generated and that the reply's text spells out, such as the tags around its thinking: templates look
for them. Independent of models, caches and screens.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError, TokenizerError
from engine.prompt.chat_template import CHATML_TAGS, ChatTemplate
from engine.prompt.thinking_mode import LEVEL_BUDGETS_TOKENS, ThinkingMode
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.tokenizer import Tokenizer
from engine.tokenizer.special import spelled_in

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_HELD_BACK_TOKENS = 2
"""Tokens withheld at the end of a typed text: further typing can change them by merges."""
_LONGEST_WORD_CHARS = 24
"""Limit on a word's length in characters: longer text without a space counts as a script without
spaces."""
_ANY_CONTINUATION = " and on"
_OPENING_CHARS = 200
_CALL_ID_CHARS = 9
"""Templates of Mistral refuse ids of any other length."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: the text as written or generated; without the calls, if there are any.
        calls: of tools, that a reply ends with.
        results: of the calls before, where the role is ``tool``.
        written: a reply as generated, with its calls; "" where it has none.
    """

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[CallResult, ...] = ()
    written: str = ""

    @property
    def raw(self) -> str:
        """The text as written or generated."""
        return self.written or self.content


@dataclass(frozen=True)
class _Mark:
    """A place where tokenising can resume.

    Attributes:
        needs_chars: number of leading characters that must be unchanged for the place to be safe.
        chars: offset in the text where tokenising resumes.
        n_ids: number of ids of the text before it.
        after_special: whether a special token ends right before it.
    """

    needs_chars: int
    chars: int
    n_ids: int
    after_special: bool


@dataclass(frozen=True)
class RemovedReply:
    """A reply that was taken out of a conversation.

    Attributes:
        ids: exactly as generated, without the end token.
        text: the ids decoded.
    """

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class SavedChat:
    """A snapshot of a conversation and its tokens; opaque outside this file."""

    messages: tuple[Message, ...]
    replies: tuple[tuple[int, ...], ...]
    is_settled: bool
    swaps: dict[str, str]
    text: str
    ids: tuple[int, ...]
    marks: tuple[_Mark, ...]


class ChatPrompt:
    """A conversation as messages and as tokens.

    Args:
        tokenizer: the model's tokenizer.
        template: the model's chat template.

    Attributes:
        messages: the conversation so far; change it only through the methods.
        thinking: how much the model shall think before its next reply.
        tools: that the model may call, as the API describes them.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.messages: list[Message] = []
        self.thinking = ThinkingMode()
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._tokenizer = tokenizer
        self._template = template
        self._control = dict(tokenizer.control_texts)
        self._swaps = self._choose_swaps("")
        self.start(None)

    def start(self, system: str | None) -> None:
        """Begin a new conversation; ``system``: the system prompt; None or empty for none."""
        if system:
            self.messages = [Message("system", system)]
        else:
            self.messages = []
        self._now = time.time()
        self._text = ""
        self._ids: list[int] = []
        self._marks: list[_Mark] = []
        self._replies: list[tuple[int, ...]] = []
        self._is_settled = True

    @property
    def opening(self) -> str:
        """The text that the template printed after the last user message of the last
        ``prompt_ids``."""
        places = self._user_messages()
        if places:
            return self._text[places[-1].stop :]
        return self._text[-_OPENING_CHARS:]

    @property
    def thought_budget_tokens(self) -> int | None:
        """Limit on the next reply's thought in tokens: the mode's, or its level's where the
        template has no levels."""
        mode = self.thinking
        if self._template.knows_levels or not mode.level:
            return mode.budget_tokens
        return LEVEL_BUDGETS_TOKENS.get(mode.level)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings of the format: ChatML's tags if it replaces a template and the vocabulary
        lacks them.

        Valid after ``prompt_ids``, which tests whether the template can be used.
        """
        if self._template.source is not None:
            return ()
        return tuple(t for t in CHATML_TAGS if t not in self._control)

    def turn_starts(self) -> list[int]:
        """Return the index in the last ``prompt_ids`` where each user message begins,
        approximately.

        Words that a template puts around a message may count for the message before it. The ids
        before the first user message are the system prompt.
        """
        marks = sorted(self._marks, key=lambda mark: mark.chars)
        starts: list[int] = []
        n_ids = 0
        index = 0
        # In order: each mark is passed once, in conversations of any length.
        for place in self._user_messages():
            while index < len(marks) and marks[index].chars <= place.start:
                n_ids = max(n_ids, marks[index].n_ids)
                index += 1
            starts.append(n_ids)
        return starts

    def turns(self) -> list[int]:
        """Return the indices in the last ``prompt_ids`` where the conversation turns,
        approximately.

        That is where each user message begins, and where the last one ends. What recurrent layers
        know there is worth
        keeping: other messages and replies begin there.
        """
        places = self._user_messages()
        ends = (mark.n_ids for mark in self._marks if places and mark.chars >= places[-1].stop)
        return [*self.turn_starts(), *([min(ends)] if places else [])]

    def _user_messages(self) -> list[range]:
        """Find each user message in the text, in order from the start, since a short one may be
        part of another.

        The system message is skipped: templates may put it anywhere.
        """
        places = []
        pos = 0
        for message in self.messages:
            if message.role == "system":
                continue
            content = self._guard(message.content).strip()
            at = self._text.find(content, pos)
            if at < 0:  # rewritten by the template
                at = end = pos
            else:
                pos = end = at + len(content)
            if message.role in ("user", "tool"):
                places.append(range(at, end))
        return places

    def add_user(self, text: str) -> list[int]:
        """Add a user's message.

        Returns:
            The ids of the whole conversation up to where the reply begins.

        Raises:
            TemplateError: the template cannot render the conversation, which is unchanged then.
        """
        self.add_unrendered(text)
        try:
            return self.prompt_ids()
        except BaseException:
            self.messages.pop()
            raise

    def add_unrendered(self, text: str) -> None:
        """Add an earlier user message without rendering; ``prompt_ids`` raises if the template
        cannot render it."""
        self.messages.append(Message("user", text))

    def add_system(self, text: str) -> None:
        """Add a system message amid the conversation, where the template takes one."""
        self.messages.append(Message("system", text))

    def takes(self, roles: tuple[str, ...]) -> bool:
        """Whether the template takes messages of these roles in this order."""
        return self._template.takes(roles)

    def opening_ids(self, text: str) -> list[int]:
        """Return the ids that the next prompt will begin with if the user's message begins with
        ``text``.

        Leaves out the last word, which may still grow, and the template's text after the message.
        For vocabularies whose merges reach far to the left the ids are likely, not certain. The
        conversation is unchanged.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        end_of_words = 1 + max(text.rfind(space) for space in " \t\n")
        kept = text[: max(end_of_words, len(text) - _LONGEST_WORD_CHARS)].rstrip()
        here = self._ids_with(kept or "?")
        further = self._ids_with(kept + _ANY_CONTINUATION)
        shared = next(
            (i for i, (a, b) in enumerate(zip(here, further, strict=False)) if a != b), len(here)
        )
        return further[: max(0, shared - _HELD_BACK_TOKENS)]

    def _ids_with(self, text: str) -> list[int]:
        """Return the ids of the conversation with one more message, and remove the message
        again."""
        n_messages = len(self.messages)
        ids = self.add_user(text)
        self.rewind(n_messages)
        return ids

    def add_results(self, results: Sequence[CallResult]) -> None:
        """Add the results of calls, as one message; ``prompt_ids`` raises if the template cannot
        render them."""
        self.messages.append(
            Message("tool", "\n".join(one.text for one in results), results=tuple(results))
        )

    def add_reply(
        self,
        ids: list[int],
        text: str,
        calls: Sequence[ToolCall] = (),
        before_calls: str | None = None,
    ) -> None:
        """Add the model's reply to the last message.

        Args:
            ids: exactly as generated, without the end token, perhaps with the tokens of one of
                ``stops``; kept unless the template rewrites the reply.
            text: the ids decoded; control tokens may be spelled out in it.
            calls: of tools, that the reply ends with.
            before_calls: the text before them; None for all of it.

        Raises:
            ValueError: the last message is a reply.
        """
        if self.messages and not self._awaits_reply:
            raise ValueError("a reply cannot follow another")
        if calls:
            if before_calls is None:
                content = text
            else:
                content = before_calls
            if before_calls is not None:
                written = text
            else:
                written = ""
            self.messages.append(Message("assistant", content, tuple(calls), written=written))
        else:
            self.messages.append(Message("assistant", text))
        self._replies.append(self._shown_ids(ids, text))
        self._is_settled = False

    def _shown_ids(self, ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Return the ids of a reply's text, without those of the stop string that ended it."""
        if not self.stops:
            return tuple(ids)
        stream = self._tokenizer.stream(set(spelled_in(text, self._control).values()))
        n_chars = n_whole = whole_chars = 0
        for n, token_id in enumerate(ids):
            if n_chars == len(text):
                return tuple(ids[:n])
            piece = stream.push(token_id)
            if not text.startswith(piece, n_chars):  # the stop begins inside this token
                rest = self._tokenizer.encode_text(text[whole_chars:], after_special=False)
                return (*ids[:n_whole], *rest)
            n_chars += len(piece)
            if not stream.is_within_character:
                n_whole = n + 1
                whole_chars = n_chars
        return tuple(ids)

    def take_reply(self) -> RemovedReply:
        """Remove the reply at the end, to continue or replace it; the user's message is the last
        one then.

        Raises:
            ValueError: the last message is not a reply.
        """
        if not self.messages or self.messages[-1].role != "assistant":
            raise ValueError("the last message is not a reply")
        taken = RemovedReply(self._replies[-1], self.messages[-1].raw)
        self.rewind(len(self.messages) - 1)
        return taken

    def save(self) -> SavedChat:
        """Return a snapshot for ``restore``, tokens included."""
        parts = tuple(self.messages), tuple(self._replies), self._is_settled, dict(self._swaps)
        return SavedChat(*parts, self._text, tuple(self._ids), tuple(self._marks))

    def restore(self, saved: SavedChat) -> None:
        """Go back to a snapshot."""
        self.messages = list(saved.messages)
        self._replies = list(saved.replies)
        self._is_settled = saved.is_settled
        self._swaps = dict(saved.swaps)
        self._text = saved.text
        self._ids = list(saved.ids)
        self._marks = list(saved.marks)

    def rewind(self, n_messages: int) -> None:
        """Keep the first messages and drop the others; the tokens of kept messages are unchanged.

        Args:
            n_messages: number of messages to keep, the system message included.

        Raises:
            ValueError: n_messages is negative.
        """
        if n_messages < 0:
            raise ValueError("cannot keep fewer than no messages")
        if n_messages < len(self.messages):
            self.messages = self.messages[:n_messages]
            del self._replies[sum(message.role == "assistant" for message in self.messages) :]
            self._is_settled = True

    def tokenise_again(self) -> None:
        """Tokenise from the beginning, for tools that have changed; every reply keeps the ids that
        were generated."""
        messages = self.messages
        replies = iter(self._replies)
        self.messages = []
        self._replies = []
        self._text = ""
        self._ids = []
        self._marks = []
        self._is_settled = True
        for message in messages:
            if message.role == "assistant":
                if self._awaits_reply:  # there may be a reply that nothing is before
                    with suppress(
                        EngineError
                    ):  # what the template refuses is said with the next prompt
                        self.prompt_ids()
                self._replies.append(next(replies))
                self._is_settled = False
            self.messages.append(message)

    def prompt_ids(self) -> list[int]:
        """Return the ids of the whole conversation up to where the next reply begins.

        Raises:
            TemplateError: the template cannot render this conversation.
            ValueError: the last message is a reply, or there is none.
        """
        if not self._awaits_reply:
            raise ValueError("the next reply needs a message before it")
        rendered = self._render()
        self._settle_reply(rendered)
        self._keep_common_start(rendered)
        self._append(rendered)
        return list(self._ids)

    @property
    def _awaits_reply(self) -> bool:
        return bool(self.messages) and self.messages[-1].role != "assistant"

    def _render(self) -> str:
        """Return the conversation as the template prints it, control tokens in messages swapped
        out."""
        contents = "".join(part for message in self.messages for part in _texts(message))
        if self.tools:
            contents += json.dumps(list(self.tools), ensure_ascii=False)
        else:
            contents += ""
        if any(swap in contents for swap in self._swaps.values()):
            before = self._swaps
            self._swaps = self._choose_swaps(contents)
            self._text = self._text.translate(
                {ord(swap): self._swaps[first] for first, swap in before.items()}
            )
        replies = iter(self._replies)
        messages: list[dict[str, Any]] = []
        for at, message in enumerate(self.messages):
            if message.role != "tool":
                messages.append(
                    self._guarded(message, next(replies) if message.role == "assistant" else ())
                )
            elif at and (self.messages[at - 1].calls or self.messages[at - 1].role == "tool"):
                messages += map(self._guarded_result, message.results)
            # its call went when the context was full, and templates refuse a result without one
            else:
                messages.append({"role": "user", "content": self._guard(message.content)})
        tools = self._guard_values(list(self.tools))
        return self._template.render(
            messages, add_generation_prompt=True, now=self._now, thinking=self.thinking, tools=tools
        )

    def _guarded(self, message: Message, ids: Sequence[int]) -> dict[str, Any]:
        """Return a message for the template, with nothing in it that could become a control
        token."""
        found: dict[str, Any] = {
            "role": message.role,
            "content": self._guard(message.content, ids, message.raw),
        }
        if message.calls:
            found["tool_calls"] = [
                {
                    "id": _short_id(call.call_id),
                    "function": {
                        "name": self._guard(call.name),
                        "arguments": json.dumps(
                            self._guard_values(call.values), ensure_ascii=False
                        ),
                    },
                }
                for call in message.calls
            ]
        return found

    def _guarded_result(self, result: CallResult) -> dict[str, Any]:
        content = self._guard(result.text)
        name = self._guard(result.name)
        return {
            "role": "tool",
            "content": content,
            "name": name,
            "tool_call_id": _short_id(result.call_id),
        }

    def _guard_values(self, value: Any) -> Any:
        """Return a JSON value with each text in it guarded."""
        if isinstance(value, str):
            return self._guard(value)
        if isinstance(value, Mapping):
            return {self._guard(str(key)): self._guard_values(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._guard_values(one) for one in value]
        return value

    def _choose_swaps(self, contents: str) -> dict[str, str]:
        """Map the first characters of control tokens to private-use characters that occur nowhere
        else."""
        elsewhere = set(contents).union(self._template.source or "", *self._control)
        firsts = sorted({text[0] for text in self._control})
        swaps = dict(
            zip(
                firsts,
                (one for one in map(chr, _PRIVATE_USE) if one not in elsewhere),
                strict=False,
            )
        )
        if len(firsts) > len(swaps):
            raise TokenizerError(
                "the control tokens begin with too many different characters (use another model)"
            )
        return swaps

    def _guard(self, content: str, ids: Sequence[int] = (), written: str = "") -> str:
        """Swap spelled-out control tokens, except those of a reply that occur as often in its ids.

        Args:
            content: the text.
            ids: of the whole reply.
            written: the whole reply, if the text is a part of it.
        """
        written = written or content
        for text, token_id in spelled_in(content, self._control).items():
            if written.count(text) == ids.count(token_id):
                continue
            while text in content:
                content = content.replace(text, self._swaps[text[0]] + text[1:])
        return content

    def _restore(self, text: str) -> str:
        if text.isascii() or max(text) < chr(_PRIVATE_USE[0]):
            return text
        return text.translate({ord(swap): first for first, swap in self._swaps.items()})

    def _settle_reply(self, rendered: str) -> None:
        """Keep the generated ids of the last reply if the template changes only the white space
        around it."""
        ids: tuple[int, ...] = () if self._is_settled else self._replies[-1]
        self._is_settled = True
        if not ids or not rendered.startswith(self._text):
            return
        reply = next(message for message in reversed(self.messages) if message.role == "assistant")
        end = _end_of_reply(rendered, len(self._text), self._guard(reply.raw, ids))
        if end is not None and not self._is_within_control(rendered, end):
            self._text = rendered[:end]
            self._ids += ids
            self._marks.append(_Mark(end, end, len(self._ids), False))

    def _is_within_control(self, rendered: str, offset: int) -> bool:
        """Whether the template's own control token spans the offset: a reply may look like the
        beginning of one."""
        start = len(self._text)
        fragments = self._tokenizer.split(rendered[start:], special=True)
        return any(f.token_id is not None and f.start < offset - start < f.end for f in fragments)

    def _keep_common_start(self, rendered: str) -> None:
        """Drop the tokens after the last safe place in the common start of old and new text."""
        shared_chars = _shared_chars(self._text, rendered)
        while self._marks and self._marks[-1].needs_chars > shared_chars:
            self._marks.pop()
        if self._marks:
            mark = self._marks[-1]
        else:
            mark = _Mark(0, 0, 0, True)
        self._text = self._text[: mark.chars]
        del self._ids[mark.n_ids :]

    def _append(self, rendered: str) -> None:
        """Tokenise the rendered text after the part that has tokens already."""
        tokenizer = self._tokenizer
        if self._marks:
            after_special = self._marks[-1].after_special
        else:
            after_special = True
        base = len(self._text)
        fragments = tokenizer.split(rendered[base:], special=True)
        printed_bos = bool(fragments) and fragments[0].token_id == tokenizer.bos_id
        if not self._ids and tokenizer.add_bos and tokenizer.bos_id is not None and not printed_bos:
            self._ids.append(tokenizer.bos_id)
        for fragment in fragments:
            if fragment.token_id is None:
                self._ids += tokenizer.encode_text(self._restore(fragment.text), after_special)
            else:
                # Text before a special token has the same tokens whatever follows the special
                # token.
                start = base + fragment.start
                end = base + fragment.end
                self._marks.append(_Mark(end, start, len(self._ids), after_special))
                self._ids.append(fragment.token_id)
            after_special = fragment.token_id is not None
        self._text = rendered
        self._marks.append(_Mark(len(rendered), len(rendered), len(self._ids), after_special))


def _texts(message: Message) -> tuple[str, ...]:
    of_calls = (part for call in message.calls for part in (call.name, call.arguments))
    return (
        message.content,
        *of_calls,
        *(part for one in message.results for part in (one.name, one.text)),
    )


def _short_id(call_id: str) -> str:
    """Return a call's id as every template takes it."""
    if len(call_id) == _CALL_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_CALL_ID_CHARS]


def _end_of_reply(rendered: str, start: int, reply: str) -> int | None:
    """Return the offset after a reply that the rendered text has at ``start``; None if it is not
    there.

    Differences in surrounding white space are accepted: templates trim replies or add spaces, and
    the reply's own tokens may begin with a space.
    """
    if rendered.startswith(reply, start):
        return start + len(reply)
    if not reply.strip():
        return start
    first = start
    while rendered[first : first + 1].isspace():
        first += 1
    for printed in (reply.lstrip(), reply.strip()):
        if rendered.startswith(printed, first):
            return first + len(printed)
    return None


def _shared_chars(one: str, other: str) -> int:
    """Return the length of the longest common prefix; a binary search keeps the comparison in
    compiled code."""
    low = 0
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

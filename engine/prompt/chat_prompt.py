"""The tokens of a conversation, appended turn by turn.

Each turn renders the whole conversation and tokenises only the new text. Generated replies keep the
ids that the model produced. If a template rewrites earlier turns (it may remove old thoughts), the
text is tokenised again from the last resume point before the first difference.

Text of messages never becomes a control token. Before rendering, the first character of every
spelled-out control token is swapped for a private-use character. The rendered text is cut at the
genuine control tokens, and the characters are swapped back. Control tokens that the model itself
generated, such as the tags around its thoughts, are not swapped, because templates look for them.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError, TokenizerError
from engine.prompt.chat_template import CHATML_TAGS, ChatTemplate
from engine.prompt.thinking import LEVEL_BUDGETS_TOKENS, ThinkingMode
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.split import CallSplitter
from engine.tokenizer import Tokenizer
from engine.tokenizer.special import spelled_in

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_PICTURES = 0x100000
"""First of 4,096 private-use characters that spell the names of pictures in a rendered text."""
_PICTURE_START = chr(0x10F000)
"""First character of a picture's name."""
_PICTURE = re.compile(f"{_PICTURE_START}[{chr(_PICTURES)}-{chr(_PICTURES + 0xFFF)}]{{5}}")
UNCERTAIN_TOKENS = 2
"""Number of tokens at the end of a typed text that further typing may change by merges."""
_LONGEST_WORD_CHARS = 24
"""Limit on the characters of a word. Longer text without a space is in a script without spaces."""
_ANY_CONTINUATION = " and on"
_OPENING_CHARS = 200
_CALL_ID_CHARS = 9
"""Templates of Mistral refuse ids of any other length."""


@dataclass(frozen=True)
class Message:
    """Message of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: text as written or generated, without tool calls.
        calls: tool calls at the end of a reply.
        results: results of the previous calls, if the role is ``tool``.
        written: text of a reply with its calls, as generated; empty if it has no calls.
    """

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[CallResult, ...] = ()
    written: str = ""

    @property
    def raw(self) -> str:
        """Text as written or generated."""
        return self.written or self.content


@dataclass(frozen=True)
class _ResumePoint:
    """Position where tokenising can resume.

    Attributes:
        needs_chars: number of leading characters of the text that must be unchanged.
        chars: offset in the text where tokenising resumes.
        n_ids: number of ids of the text before the offset.
        after_special: whether a special token ends at the offset.
    """

    needs_chars: int
    chars: int
    n_ids: int
    after_special: bool


@dataclass(frozen=True)
class RemovedReply:
    """Reply that was removed from a conversation.

    Attributes:
        ids: ids as generated, without the end token.
        text: text of the ids.
    """

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class SavedChat:
    """Snapshot of a conversation and its tokens, for ``ChatPrompt.restore`` only."""

    messages: tuple[Message, ...]
    replies: tuple[tuple[int, ...], ...]
    has_tokens: bool
    swaps: dict[str, str]
    text: str
    ids: tuple[int, ...]
    resume_points: tuple[_ResumePoint, ...]


class ChatPrompt:
    """A conversation as messages and as tokens.

    Args:
        tokenizer: the model's tokenizer.
        template: the model's chat template.

    Attributes:
        messages: the conversation so far; only the methods may change it.
        thinking: amount of thinking before the next reply.
        tools: tools that the model may call, as the API describes them.
        pictures: ids of the pictures that messages may contain, by ``picture_name``.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.messages: list[Message] = []
        self.thinking = ThinkingMode()
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.pictures: dict[str, tuple[int, ...]] = {}
        self._tokenizer = tokenizer
        self._template = template
        self._control = dict(tokenizer.control_texts)
        self._swaps = self._choose_swaps("")
        self.start(None)

    def start(self, system: str | None) -> None:
        """Start a new conversation.

        Args:
            system: system prompt; None or empty for none.
        """
        self.messages = []
        if system:
            self.messages.append(Message("system", system))
        self._now = time.time()
        self._text = ""
        self._ids: list[int] = []
        self._resume_points: list[_ResumePoint] = []
        self._replies: list[tuple[int, ...]] = []
        self._has_tokens = True

    @property
    def opening(self) -> str:
        """Text that the template printed after the last user message, in the last
        ``prompt_ids``."""
        spans = self._user_messages()
        if spans:
            return self._text[spans[-1].stop :]
        return self._text[-_OPENING_CHARS:]

    @property
    def thought_budget_tokens(self) -> int | None:
        """Limit on the tokens of the next reply's thought: that of the thinking mode, or of its
        level if the template has no levels. None if there is no limit."""
        mode = self.thinking
        if self._template.knows_levels or not mode.level:
            return mode.budget_tokens
        return LEVEL_BUDGETS_TOKENS.get(mode.level)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings of the format: ChatML's tags, if ChatML replaces the template and the
        vocabulary lacks the tags.

        Valid after ``prompt_ids``, which tests the template.
        """
        if self._template.source is not None:
            return ()
        return tuple(t for t in CHATML_TAGS if t not in self._control)

    def turn_starts(self) -> list[int]:
        """Return the approximate index in the last ``prompt_ids`` where each user message begins.

        Words that a template adds before a message may count for the previous message. The ids
        before the first user message are the system prompt.
        """
        resume_points = sorted(self._resume_points, key=lambda point: point.chars)
        starts: list[int] = []
        n_ids = 0
        index = 0
        # Both are in order, so each resume point is passed once.
        for span in self._user_messages():
            while index < len(resume_points) and resume_points[index].chars <= span.start:
                n_ids = max(n_ids, resume_points[index].n_ids)
                index += 1
            starts.append(n_ids)
        return starts

    def checkpoint_positions(self) -> list[int]:
        """Return the approximate indices in the last ``prompt_ids`` where each user message begins
        and where the last one ends.

        Recurrent layers make checkpoints there, since other messages and replies may begin there.
        """
        positions = self.turn_starts()
        spans = self._user_messages()
        if spans:
            end = spans[-1].stop
            positions.append(
                min(point.n_ids for point in self._resume_points if point.chars >= end)
            )
        return positions

    def _user_messages(self) -> list[range]:
        """Return the span of each user message in the text.

        The search is in order, since a short message may be part of another. System messages are
        skipped, since templates may print them anywhere.
        """
        spans = []
        pos = 0
        for message in self.messages:
            if message.role == "system":
                continue
            content = self._guard(message.content).strip()
            start = self._text.find(content, pos)
            if start < 0:  # rewritten by the template
                start = pos
                end = pos
            else:
                end = start + len(content)
                pos = end
            if message.role in ("user", "tool"):
                spans.append(range(start, end))
        return spans

    def add_user(self, text: str) -> list[int]:
        """Add a user message.

        Returns:
            Ids of the whole conversation up to the beginning of the reply.

        Raises:
            TemplateError: the template cannot render the conversation. The conversation is
                unchanged.
        """
        self.add_unrendered(text)
        try:
            return self.prompt_ids()
        except BaseException:
            self.messages.pop()
            raise

    def add_unrendered(self, text: str) -> None:
        """Add an earlier user message without rendering. ``prompt_ids`` raises if the template
        cannot render it."""
        self.messages.append(Message("user", text))

    def add_system(self, text: str) -> None:
        """Add a system message inside the conversation, if the template accepts one."""
        self.messages.append(Message("system", text))

    def takes(self, roles: tuple[str, ...]) -> bool:
        """Whether the template accepts messages with these roles in this order."""
        return self._template.takes(roles)

    def opening_ids(self, text: str) -> list[int]:
        """Return the ids that the next prompt will begin with if the user's message begins with
        ``text``.

        The last word, which may still grow, and the template's text after the message are left out.
        If a vocabulary's merges reach far to the left, the ids are likely but not certain. The
        conversation is unchanged.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        end_of_words = 1 + max(text.rfind(space) for space in " \t\n")
        for match in _PICTURE.finditer(text):
            end_of_words = max(end_of_words, match.end())
        stable = text[: max(end_of_words, len(text) - _LONGEST_WORD_CHARS)].rstrip()
        ids = self._ids_with(stable or "?")
        longer_ids = self._ids_with(stable + _ANY_CONTINUATION)
        n_shared = next(
            (i for i, (a, b) in enumerate(zip(ids, longer_ids, strict=False)) if a != b), len(ids)
        )
        n_certain = max(0, n_shared - UNCERTAIN_TOKENS)
        while n_certain < n_shared and longer_ids[n_certain] < 0:  # rows of a picture
            n_certain += 1
        return longer_ids[:n_certain]

    def _ids_with(self, text: str) -> list[int]:
        """Return the ids of the conversation with one more user message."""
        n_messages = len(self.messages)
        ids = self.add_user(text)
        self.rewind(n_messages)
        return ids

    def add_results(self, results: Sequence[CallResult]) -> None:
        """Add the results of tool calls as one message. ``prompt_ids`` raises if the template
        cannot render them."""
        self.messages.append(
            Message("tool", "\n".join(result.text for result in results), results=tuple(results))
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
            ids: ids as generated, without the end token. They may end with the tokens of one of
                ``stops``. They are used unless the template rewrites the reply.
            text: text of the ids, in which control tokens may be spelled out.
            calls: tool calls at the end of the reply.
            before_calls: text before the calls; None for the whole text.

        Raises:
            ValueError: the last message is a reply.
        """
        if self.messages and not self._awaits_reply:
            raise ValueError("a reply cannot follow another")
        if calls and before_calls is not None:
            message = Message("assistant", before_calls, tuple(calls), written=text)
        else:
            message = Message("assistant", text, tuple(calls))
        self.messages.append(message)
        self._replies.append(self._ids_of_text(ids, text))
        self._has_tokens = False

    def _ids_of_text(self, ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Return the ids of a reply's text, without those of a stop string at the end."""
        if not self.stops:
            return tuple(ids)
        stream = self._tokenizer.stream(set(spelled_in(text, self._control).values()))
        n_chars = 0
        n_safe = 0  # tokens that end at a character's end, and their text
        safe_chars = 0
        for n, token_id in enumerate(ids):
            if n_chars == len(text):
                return tuple(ids[:n])
            piece = stream.push(token_id)
            if not text.startswith(piece, n_chars):  # the stop begins inside this token
                tail_ids = self._tokenizer.encode_text(text[safe_chars:], after_special=False)
                return (*ids[:n_safe], *tail_ids)
            n_chars += len(piece)
            if not stream.is_within_character:
                n_safe = n + 1
                safe_chars = n_chars
        return tuple(ids)

    def take_reply(self) -> RemovedReply:
        """Remove the reply at the end of the conversation, to continue or replace it.

        Raises:
            ValueError: the last message is not a reply.
        """
        if not self.messages or self.messages[-1].role != "assistant":
            raise ValueError("the last message is not a reply")
        reply = RemovedReply(self._replies[-1], self.messages[-1].raw)
        self.rewind(len(self.messages) - 1)
        return reply

    def save(self) -> SavedChat:
        """Return a snapshot for ``restore``, tokens included."""
        state = tuple(self.messages), tuple(self._replies), self._has_tokens, dict(self._swaps)
        return SavedChat(*state, self._text, tuple(self._ids), tuple(self._resume_points))

    def restore(self, saved: SavedChat) -> None:
        """Go back to a snapshot."""
        self.messages = list(saved.messages)
        self._replies = list(saved.replies)
        self._has_tokens = saved.has_tokens
        self._swaps = dict(saved.swaps)
        self._text = saved.text
        self._ids = list(saved.ids)
        self._resume_points = list(saved.resume_points)

    def rewind(self, n_messages: int) -> None:
        """Drop all messages after the first ``n_messages``. Tokens of the others are unchanged.

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
            self._has_tokens = True

    def tokenise_again(self) -> None:
        """Tokenise the conversation from the beginning after a change of the tools. Replies keep
        the generated ids."""
        messages = self.messages
        replies = iter(self._replies)
        self.messages = []
        self._replies = []
        self._text = ""
        self._ids = []
        self._resume_points = []
        self._has_tokens = True
        for message in messages:
            if message.role == "assistant":
                if self._awaits_reply:  # a conversation may begin with a reply
                    with suppress(EngineError):  # the next prompt reports it again
                        self.prompt_ids()
                self._replies.append(next(replies))
                self._has_tokens = False
            self.messages.append(message)

    def prompt_ids(self) -> list[int]:
        """Return the ids of the whole conversation up to the beginning of the next reply.

        Raises:
            TemplateError: the template cannot render this conversation.
            ValueError: the last message is a reply, or there is no message.
        """
        if not self._awaits_reply:
            raise ValueError("the next reply needs a message before it")
        rendered = self._render()
        self._accept_reply_ids(rendered)
        self._drop_changed_tokens(rendered)
        self._append(rendered)
        return list(self._ids)

    @property
    def _awaits_reply(self) -> bool:
        return bool(self.messages) and self.messages[-1].role != "assistant"

    def _render(self) -> str:
        """Return the conversation as the template prints it, with the control tokens in messages
        swapped."""
        contents = "".join(text for message in self.messages for text in _texts(message))
        if self.tools:
            contents += json.dumps(list(self.tools), ensure_ascii=False)
        if any(swap in contents for swap in self._swaps.values()):
            old_swaps = self._swaps
            self._swaps = self._choose_swaps(contents)
            self._text = self._text.translate(
                {ord(swap): self._swaps[first] for first, swap in old_swaps.items()}
            )
        replies = iter(self._replies)
        messages: list[dict[str, Any]] = []
        previous: Message | None = None
        for message in self.messages:
            if message.role == "assistant":
                messages.append(self._guarded(message, next(replies)))
            elif message.role != "tool":
                messages.append(self._guarded(message, ()))
            elif previous is not None and (previous.calls or previous.role == "tool"):
                messages += map(self._guarded_result, message.results)
            else:
                # The call was dropped from the full context, and templates refuse a result without
                # its call.
                messages.append({"role": "user", "content": self._guard(message.content)})
            previous = message
        tools = self._guard_values(list(self.tools))
        return self._template.render(
            messages, add_generation_prompt=True, now=self._now, thinking=self.thinking, tools=tools
        )

    def _guarded(self, message: Message, ids: Sequence[int]) -> dict[str, Any]:
        """Return a message for the template in which no text can become a control token."""
        guarded: dict[str, Any] = {
            "role": message.role,
            "content": self._guard(message.content, ids, message.raw),
        }
        if message.calls:
            guarded["tool_calls"] = [
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
        return guarded

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
        """Return a JSON value in which no text can become a control token."""
        if isinstance(value, str):
            return self._guard(value)
        if isinstance(value, Mapping):
            return {
                self._guard(str(key)): self._guard_values(member) for key, member in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._guard_values(member) for member in value]
        return value

    def _choose_swaps(self, contents: str) -> dict[str, str]:
        """Map the first characters of control tokens to unused private-use characters."""
        used = set(contents).union(self._template.source or "", *self._control)
        firsts = sorted({text[0] for text in self._control})
        swaps = dict(
            zip(
                firsts,
                (char for char in map(chr, _PRIVATE_USE) if char not in used),
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
            content: text to guard.
            ids: ids of the whole reply.
            written: text of the whole reply, if ``content`` is a part of it.
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

    def _accept_reply_ids(self, rendered: str) -> None:
        """Use the generated ids of the last reply if the template changes only the white space
        around it, or prints its tool calls in another form."""
        if self._has_tokens:
            return
        self._has_tokens = True
        ids = self._replies[-1]
        if not ids or not rendered.startswith(self._text):
            return
        reply = next(message for message in reversed(self.messages) if message.role == "assistant")
        end = _end_of_reply(rendered, len(self._text), self._guard(reply.raw, ids))
        if end is None and reply.calls:
            end = self._end_of_printed_calls(rendered, reply, ids)
        if end is not None and not self._is_within_control(rendered, end):
            self._text = rendered[:end]
            self._ids += ids
            self._resume_points.append(_ResumePoint(end, end, len(self._ids), False))

    def _end_of_printed_calls(
        self, rendered: str, reply: Message, ids: Sequence[int]
    ) -> int | None:
        """Return the offset after the last reply, if the template prints the same text and the same
        calls in another form; None if it changes more.

        Some models omit the tags of a call or add a fence. To read the template's form would cost
        the tokens of the whole reply.
        """
        content = self._guard(reply.content, ids, reply.raw)
        start = _end_of_reply(rendered, len(self._text), content)
        if start is None or not reply.raw.startswith(reply.content):
            return None
        values = [(call.name, call.values) for call in reply.calls]
        if self._calls_in(reply.raw[len(reply.content) :]) != values:
            return None
        for fragment in self._tokenizer.split(rendered[start:], special=True):
            if fragment.token_id in self._tokenizer.end_ids:
                end = start + fragment.start
                if self._calls_in(self._restore(rendered[start:end])) == values:
                    return end
                return None
        return None

    def _calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Return names and arguments of the calls that a text consists of; empty if it has other
        text."""
        call_format = self._template.call_format
        if call_format is None:
            return []
        splitter = CallSplitter(call_format, self.tools)
        pieces = (splitter.push(text), splitter.flush())
        if any(piece.text.strip() for piece in pieces):
            return []
        return [(call.name, call.values) for call in splitter.calls]

    def _is_within_control(self, rendered: str, offset: int) -> bool:
        """Whether a control token of the template spans the offset. A reply may look like the
        beginning of one."""
        start = len(self._text)
        fragments = self._tokenizer.split(rendered[start:], special=True)
        return any(f.token_id is not None and f.start < offset - start < f.end for f in fragments)

    def _drop_changed_tokens(self, rendered: str) -> None:
        """Drop the tokens after the last resume point in the common prefix of old and new text."""
        shared_chars = _shared_chars(self._text, rendered)
        while self._resume_points and self._resume_points[-1].needs_chars > shared_chars:
            self._resume_points.pop()
        point = _ResumePoint(0, 0, 0, True)
        if self._resume_points:
            point = self._resume_points[-1]
        self._text = self._text[: point.chars]
        del self._ids[point.n_ids :]

    def _append(self, rendered: str) -> None:
        """Tokenise the new part of the rendered text."""
        tokenizer = self._tokenizer
        after_special = True
        if self._resume_points:
            after_special = self._resume_points[-1].after_special
        base = len(self._text)
        fragments = tokenizer.split(rendered[base:], special=True)
        printed_bos = bool(fragments) and fragments[0].token_id == tokenizer.bos_id
        if not self._ids and tokenizer.add_bos and tokenizer.bos_id is not None and not printed_bos:
            self._ids.append(tokenizer.bos_id)
        for fragment in fragments:
            if fragment.token_id is None:
                self._ids += self._ids_of_fragment(fragment.text, after_special)
            else:
                # Text before a special token has the same tokens whatever follows the special
                # token.
                start = base + fragment.start
                end = base + fragment.end
                self._resume_points.append(_ResumePoint(end, start, len(self._ids), after_special))
                self._ids.append(fragment.token_id)
            after_special = fragment.token_id is not None
        self._text = rendered
        self._resume_points.append(
            _ResumePoint(len(rendered), len(rendered), len(self._ids), after_special)
        )

    def _ids_of_fragment(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of text without control tokens, in which pictures may stand."""
        if _PICTURE_START not in text:
            return self._tokenizer.encode_text(self._restore(text), after_special)
        ids: list[int] = []
        start = 0
        for match in _PICTURE.finditer(text):
            picture = self.pictures.get(match[0])
            if picture is None:
                continue
            if before := text[start : match.start()]:
                ids += self._tokenizer.encode_text(self._restore(before), after_special)
            ids += picture
            start = match.end()
            after_special = True
        if rest := text[start:]:
            ids += self._tokenizer.encode_text(self._restore(rest), after_special)
        return ids


def picture_name(digest: str) -> str:
    """Return the name of a picture in the texts of messages, 6 private-use characters.

    Args:
        digest: digest of the picture, at least 15 hexadecimal digits.
    """
    codes = [int(digest[first : first + 3], 16) for first in range(0, 15, 3)]
    return _PICTURE_START + "".join(chr(_PICTURES + code) for code in codes)


def _texts(message: Message) -> tuple[str, ...]:
    call_texts = (text for call in message.calls for text in (call.name, call.arguments))
    return (
        message.content,
        *call_texts,
        *(text for result in message.results for text in (result.name, result.text)),
    )


def _short_id(call_id: str) -> str:
    """Return a call's id in the form that every template accepts."""
    if len(call_id) == _CALL_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_CALL_ID_CHARS]


def _end_of_reply(rendered: str, start: int, reply: str) -> int | None:
    """Return the offset after a reply in the rendered text; None if it is not at ``start``.

    Differences in surrounding white space are accepted: templates trim replies or add spaces, and
    the tokens of a reply may begin with a space.
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


def _shared_chars(first: str, second: str) -> int:
    """Return the length of the longest common prefix, by a binary search over fast comparisons."""
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

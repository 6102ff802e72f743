"""Messages seen on the screen, and whether the saved conversations have each of them once."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from app.conversations.conversation import ChatMessage, Role
from app.conversations.locks import StoreError
from app.conversations.store import SavedConversation, Store
from tests.programs.soak.view import is_seen_in


class Fate(Enum):
    """The part of a message that must be found."""

    WAITS = "waits"
    """The message was waiting for its turn; it need not be saved."""
    SENT = "sent"
    """The message was seen as sent: if it is the last one, it is saved. A next message may have taken its
    place."""
    ANSWERED = "answered"
    """A reply was seen to be finished: the conversation has both."""
    REPLACED = "replaced"
    """An edit took its place, or may have: nothing is promised of it."""
    GONE = "gone"
    """The conversation was deleted, or the chat said that it is not saved, or a known fault may
    have taken it."""


@dataclass
class PromptMessage:
    """Message of the user.

    Attributes:
        text: to the letter, as it must be saved.
        reply: letters of the reply as it was painted; "" where nothing is promised of it.
        why_gone: why nothing is promised of the message; "" where something is.
    """

    marker: str
    text: str
    fate: Fate = Fate.SENT
    reply: str = ""
    why_gone: str = ""

    def give_up(self, why: str) -> None:
        """Promise nothing of it any more."""
        self.fate = Fate.GONE
        self.why_gone = why


@dataclass
class Found:
    """Contents of the disk: every conversation as it is read, and every message that it has or
    keeps for later."""

    saved: dict[str, SavedConversation] = field(default_factory=dict)
    recorded: dict[str, set[str]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def read_all(store: Store) -> Found:
    """Read every conversation."""
    result = Found()
    for conversation_id in store.ids():
        try:
            result.saved[conversation_id] = store.read(conversation_id)
        except StoreError as error:
            result.unreadable.append(f"conversation {conversation_id} cannot be read: {error}")
            continue
        saved = result.saved[conversation_id]
        prompts = {
            message.text for message in saved.conversation.messages if message.role is Role.USER
        }
        result.recorded[conversation_id] = {
            *prompts,
            saved.unanswered_replacement,
            *saved.queued_texts,
        }
    return result


class Ledger:
    """All that was seen in a run."""

    def __init__(self) -> None:
        self.said: dict[str, PromptMessage] = {}

    def note(self, marker: str, text: str, fate: Fate = Fate.SENT) -> PromptMessage:
        """A message was seen."""
        message = self.said.get(marker)
        if message is None:
            message = self.said[marker] = PromptMessage(marker, text, fate)
        elif message.fate is Fate.WAITS:
            message.fate = fate
        return message

    def replace(self, markers: Iterable[str]) -> None:
        """Something takes the place of these messages."""
        for marker in markers:
            message = self.said.get(marker)
            if message is not None and message.fate is not Fate.GONE:
                message.fate = Fate.REPLACED
                message.reply = ""

    def forget_deleted(self, conversation_id: str, saved_then: Found, saved_now: Found) -> None:
        """Nothing is promised of messages that only a conversation had which was deleted."""
        saved_texts = {
            m.text for saved in saved_now.saved.values() for m in saved.conversation.messages
        }
        recorded = set().union(*saved_now.recorded.values())
        messages = {m.text for m in saved_then.saved[conversation_id].conversation.messages}
        for message in self.said.values():
            is_left = _among(saved_texts, message.text) or not _among(messages, message.text)
            is_recorded = _among(recorded, message.text) or not _among(
                saved_then.recorded[conversation_id], message.text
            )
            if not (is_left and is_recorded):
                message.give_up("deleted with their conversation")

    def marker_in(self, text: str) -> str | None:
        """Return the marker of a saved message, if it is one of this run's."""
        word = text.split(maxsplit=1)[0] if text.split() else ""
        return word if word in self.said else None

    @property
    def n_words(self) -> int:
        """How many words are looked for."""
        return sum(
            len(s.text.split()) for s in self.said.values() if s.fate not in (Fate.WAITS, Fate.GONE)
        )

    def check(self, saved_now: Found) -> list[str]:
        """Return what is missing, said twice or not as it was seen."""
        return [
            *saved_now.unreadable,
            *self._missing(saved_now),
            *_twice(saved_now.saved, self.said),
        ]

    def _missing(self, saved_now: Found) -> Iterable[str]:
        recorded = set().union(*saved_now.recorded.values())
        replies: dict[str, list[ChatMessage | None]] = {}
        for saved in saved_now.saved.values():
            messages = saved.conversation.messages
            for index, message in enumerate(messages):
                if message.role is Role.USER:
                    reply = messages[index + 1] if index + 1 < len(messages) else None
                    for text in _parts_of(message.text):
                        replies.setdefault(text, []).append(reply)
        for sent in self.said.values():
            is_replaced = sent.fate is Fate.SENT and sent.marker != next(reversed(self.said))
            if is_replaced or sent.fate in (Fate.WAITS, Fate.GONE, Fate.REPLACED):
                continue
            if not _among(recorded, sent.text):
                yield f"lost: {sent.marker} ({sent.fate.value}): {sent.text[:80]!r}"
            elif sent.fate is Fate.ANSWERED and not self._went_with_replaced(sent, recorded):
                yield from _missing_reply(sent, replies.get(sent.text))

    def _went_with_replaced(self, message: PromptMessage, recorded: Iterable[str]) -> bool:
        """Whether an unanswered message went with this one, and something took the place of
        both."""
        joined = (text for text in recorded if text.endswith(f"\n\n{message.text}"))
        firsts = (
            self.said[marker] for text in joined if (marker := self.marker_in(text)) is not None
        )
        return any(first.fate in (Fate.REPLACED, Fate.GONE) for first in firsts)


def _holds(saved: str, text: str) -> bool:
    """Whether a saved text is a message, or one that an unanswered message went with."""
    return saved == text or saved.endswith(f"\n\n{text}") or saved.startswith(f"{text}\n\n")


def _among(saved: Iterable[str], sent_text: str) -> bool:
    return any(_holds(text, sent_text) for text in saved)


def _parts_of(text: str) -> list[str]:
    """Return a saved message, and what it may be put together from: unanswered ones go with the
    next."""
    cuts = [index for index in range(len(text)) if text.startswith("\n\n", index)]
    return [text, *(text[index + 2 :] for index in cuts), *(text[:index] for index in cuts)]


def _missing_reply(
    message: PromptMessage, replies: list[ChatMessage | None] | None
) -> Iterable[str]:
    if replies is None:
        yield f"no conversation has {message.marker} any more, though nothing took its place"
    elif not any(reply is not None for reply in replies):
        yield f"the reply to {message.marker} is lost; seen: {message.reply[:80]!r}"
    elif not any(reply is not None and is_seen_in(message.reply, reply.text) for reply in replies):
        texts = [reply.text for reply in replies if reply is not None]
        yield f"the reply to {message.marker} was seen as {message.reply[-200:]!r} and is saved as {texts[0][-240:]!r}"


def _twice(
    saved: Mapping[str, SavedConversation], sent: Mapping[str, PromptMessage]
) -> Iterable[str]:
    originals: Counter[str] = Counter()
    for conversation_id, conversation in saved.items():
        texts = Counter(m.text for m in conversation.conversation.messages if m.role is Role.USER)
        originals += Counter(dict.fromkeys(texts, 1)) if not conversation.forked_from else Counter()
        for text, n in texts.items():
            if n > 1 and text.split(maxsplit=1)[0] in sent:
                yield f"said {n} times in conversation {conversation_id}: {text[:80]!r}"
    for text, n in originals.items():
        if n > 1 and text.split(maxsplit=1)[0] in sent:
            yield f"said in {n} conversations that are no copies: {text[:80]!r}"


def listed_ids(command: list[str], environ: Mapping[str, str], cwd: Path) -> list[str]:
    """Return what ``jalopy sessions --json`` lists."""
    import json

    done = subprocess.run(
        [*command, "sessions", "--json"],
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [entry["id"] for entry in json.loads(done.stdout)["conversations"]]

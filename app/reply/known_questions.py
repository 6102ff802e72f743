"""Which question of its training the starter model is asked, and what training has for it.

The words that matter must be those of one wording, names of its tables and numbers aside; a
misspelt long word is taken for the known one next to it. A question with most words of a wording,
and none that its kind does not know, is near: there the model chooses between that answer and
saying that it does not know. What people tell of themselves, and ask for later, is found by whole
sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

from app.text.record import record

MOST_MESSAGES = 30
"""Earlier messages that are looked through for what was told, and for what "its" means."""
MOST_CHARS = 200
"""Longer messages are beyond the model."""
NUMBER = "number"
_MISSPELT_CHARS = 6
"""Least characters of a word that may be misspelt."""
_WORD = re.compile(
    r"\d+(?:st|nd|rd|th)\b|\d+(?:[.,]\d+)*|[^\W\d_][^\W_]*(?:'[^\W_]+)*|(?<=\d)[()]|[()](?=\d)|[^\w\s.,!?:;'\"()…“”]|_"
)
OF_ONESELF = re.compile(r"\b(?:i|i'm|im|me|my|we|our)\b")
_FRAME = re.compile(
    r"^(?:hey|hi(?: there)?|hello(?: there)?(?=[,!.]))[,!. ]+(?=\S+ \S)"
    r"|\b(?:please|pls|plz|(?:can|could|will|would) (?:you|anyone)(?: please| also)? (?:tell "
    r"me|say|name|give me|list)"
    r"|tell me|give me|do you (?:happen to )?know|i (?:need|want|would like|would love|have) "
    r"to (?:know|ask|find out)"
    r"|i (?:was wondering|wonder|forgot|am curious)|remind me|let me (?:know|ask)|(?:may|can) "
    r"i ask|by any chance"
    r"|(?:a )?quick (?:question|one)|just curious|someone asked me|i'd (?:like|love) to know)\b"
)
"""What people say around a question."""
_BEFORE_TOLD = re.compile(
    r"(?i:(?:please|hello|hi|hi there|hey|actually|no, wait|sorry, i meant|let me correct "
    r"that|i was wrong|ok|well)"
    r"[,.:!]? )+"
)
_IDLE = frozenset(
    {
        "a", "an", "the", "is", "are", "of", "in", "on", "at", "to", "for", "it", "and", "so",
        "does", "do", "has",
        "have", "what", "which", "ok", "okay", "well", "now",
    }
)  # fmt: skip
_I = frozenset({"i", "i'm", "im", "i'd", "my", "me", "am"})
_YOU = frozenset({"you", "your", "you're", "yours", "u"})
_ASKING = frozenset({"how", "who", "where", "when", "many", "much"})
_TURNING = frozenset(
    {"not", "no", "never", "except", "without", "than", "was", "were", "will", "why"}
)
"""Words that turn a question round, or make it another one."""
LIGHT = frozenset(
    {
        "could", "would", "can", "may", "might", "shall", "you", "me", "us", "i", "i'd", "i'm",
        "im", "am", "be",
        "been", "that", "this", "these", "there", "just", "give", "work", "out", "need", "find",
        "think", "want",
        "like", "with", "by", "if", "as", "then", "than", "them", "they", "we", "please", "tell",
        "say", "name",
        "call", "called",
    }
)  # fmt: skip
"""Words that say little of what is asked: they do not count for how near two questions are, nor in
rows of words."""
_NEAR = 0.6, 0.5
"""Least share of words that a near question has in common with a wording: without names in it, and
with."""
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90
}  # fmt: skip
_NUMBERS = {word: n for n, word in enumerate(_UNITS)} | _TENS

_SUMS: dict[str, Callable[[int, int], str | None]] = {
    "+": lambda x, y: f"{x} + {y} = {x + y}." if max(x, y) < 100 else None,
    "-": lambda x, y: f"{x} - {y} = {x - y}." if max(x, y) < 100 else None,
    "x": lambda x, y: (
        f"{x} x {y} = {x * y}." if max(x, y) < 13 or (min(x, y) < 10 and max(x, y) < 100) else None
    ),
    "/": lambda x, y: (
        f"{x} / {y} = {x // y}." if 0 < y < 13 and x % y == 0 and x // y < 13 else None
    ),
    "bigger": lambda x, y: f"{max(x, y)} is bigger." if x != y and max(x, y) < 100 else None,
    "smaller": lambda x, y: f"{min(x, y)} is smaller." if x != y and max(x, y) < 100 else None,
}
"""Of two numbers: the answer, None where training has no such sum."""


def words_of(text: str) -> list[str]:
    """Return the words of a question that matter, in small letters and in their order; numbers as
    ``#17``."""
    text = folded(text)
    text = re.sub(
        r"\bwhat(?:'?s|'re| is)\b", "what", re.sub(r"\b(who|how|where)'s\b", r"\1 is", text)
    )
    text = re.sub(r"(?<=\d)\s*[x×]\s*(?=\d)", " x ", re.sub(r"(?<=[^\W\d])-(?=[^\W\d])", " ", text))
    found = _numbered([word.removesuffix("'s") for word in _WORD.findall(_FRAME.sub(" ", text))])
    return [word for word in found if word not in _IDLE] or _numbered(_WORD.findall(text))


def folded(text: str) -> str:
    """Return a text in small letters with one kind of apostrophe, its spaces single."""
    return " ".join(text.lower().replace("’", "'").split())


def _numbered(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for at, word in enumerate(words):
        if at:
            before = words[at - 1]
        else:
            before = ""
        if before in _TENS and 0 < _NUMBERS.get(word, 0) < 10:
            found[-1] = f"#{_TENS[before] + _NUMBERS[word]}"
        elif word in _NUMBERS or (word.isdecimal() and len(word) < 9):
            found.append(f"#{_NUMBERS[word] if word in _NUMBERS else int(word)}")
        else:
            found.append(word)
    return found


class DialogueFacts:
    """What a conversation's messages have told, and what the last of them asked for."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.has_missed = False
        """Whether a message was beyond the known ones, which may have told something."""
        self.kind: Kind | None = None
        self.key: tuple[str, ...] = ()

    def miss(self, text: str) -> None:
        """A message is beyond the known ones: what it may have told of oneself replaces what was
        told before."""
        if OF_ONESELF.search(folded(text)):
            self.has_missed = True
            self.told.clear()


@record
class Kind:
    """Questions that one table answers."""

    name: str
    slots: tuple[str, ...]
    """Tables of names whose values a question of this kind holds."""
    rows: dict[tuple[str, ...], str]
    """The words of each wording without the slots, to the order of its numbers: ``xy`` or
    ``yx``."""
    is_ordered: bool
    """Whether the order of words matters: ``*`` is in the rows for the slots."""
    sets: frozenset[frozenset[str]]
    """The rows' words."""
    vocabulary: frozenset[str]
    """All of them but those that turn a question round."""
    says: dict[str, list[str]]
    """To the values of the slots, joined by ``|``; a last value of ``*`` means all others."""

    def fit(self, words: Sequence[str], in_slots: Collection[str]) -> tuple[float, str]:
        """Return how near a question is to a wording, and the order of its numbers.

        From 1 on all of its words are those of the wording, and more of them are better; 0 is too
        far.
        """
        if self.is_ordered:
            row = tuple("*" if word in in_slots else word for word in words if word not in LIGHT)
            if row in self.rows:
                return (1.0 + len(words), self.rows[row])
            return (0.0, "")
        left = [word for word in words if word not in in_slots]
        if frozenset(left) in self.sets:
            return 1.0 + len(words), "xy"
        return self._nearness(left), "xy"

    def _nearness(self, words: Sequence[str]) -> float:
        """Return the share of words that a question has in common with the row next to it; 0 if it
        is too small."""
        weighty = [word for word in words if word not in LIGHT]
        if not self.vocabulary.issuperset(weighty):
            return 0.0
        asked = set(weighty)
        best = 0.0
        for row in self.rows:
            shared = [word for word in row if word in asked]
            share = len(set(shared)) / max(1, len(asked.union(row) - LIGHT))
            if (
                share > best
                and not _ASKING.issuperset(shared)
                and (self.slots or (len(shared) > 1 and _says_alike(words, row, shared)))
            ):
                best = share
        if best >= _NEAR[bool(self.slots)]:
            return best * 0.99
        return 0.0

    def answers(self, key: Sequence[str]) -> list[str]:
        """Return what training has for the values of the slots."""
        if self.name in _SUMS:
            result = _SUMS[self.name](int(key[0]), int(key[1]))
            if result:
                return [result]
            return []
        return self.says.get("|".join(key)) or self.says.get("|".join([*key[:-1], "*"]), [])


@record
class _Fit:
    """A kind that a question may be of, and the values of its slots."""

    nearness: float
    kind: Kind
    key: tuple[str, ...]


class KnownQuestions:
    """The questions that a file made by ``starter.make_fence`` lists."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._values = {
            table: {tuple(text.split()): name for text, name in names.items()}
            for table, names in given["values"].items()
        }
        self._kinds = {one["name"]: _kind(one) for one in given["kinds"]}
        self._tells: list[tuple[str, str, str]] = [tuple(one) for one in given["tells"]]
        self._told_values = {
            about: re.compile(text) for about, text in given["told values"].items()
        }
        self._replies: dict[str, str] = given["replies"]
        named = {word for names in self._values.values() for text in names for word in text}
        asked = {word for kind in self._kinds.values() for row in kind.rows for word in row}
        self._words = named | asked | set(_NUMBERS) | _IDLE
        self._by_letter: dict[str, list[str]] = {}
        for word in self._words:
            self._by_letter.setdefault(word[:1], []).append(word)
        self._fits_of = lru_cache(2 * MOST_MESSAGES)(self._found)

    def answers(self, text: str, talked: DialogueFacts) -> tuple[list[str], bool]:
        """Return what training has for a message, and whether its very words are known; note what
        it tells."""
        if len(text) > MOST_CHARS:
            talked.miss(text)
            return [], False
        fits = self._fits_of(text, talked.kind.slots if talked.kind is not None else ())
        best = max((fit.nearness for fit in fits), default=0.0)
        if best < 1:
            told = self._told_by(text, talked)
            if told:
                return [told], True
            talked.miss(text)
        chosen = [fit for fit in fits if fit.nearness == best or best < 1]
        chosen = [fit for fit in chosen if fit.kind.name == "same"] or chosen
        return list(
            dict.fromkeys(answer for fit in chosen for answer in self._said(fit, talked))
        ), best >= 1

    def _found(self, text: str, before: tuple[str, ...]) -> tuple[_Fit, ...]:
        """Return the kinds that a question may be of; ``before``: the slots of the one before."""
        words = [self._spelt(word) for word in words_of(text)]
        found = {table: self._named(table, words) for table in self._values}
        found[NUMBER] = [(word[1:], (word,)) for word in words if word[0] == "#"]
        fits = []
        for kind in self._kinds.values():
            slots = kind.slots
            if kind.name == "same":
                if len(before) == 1:
                    slots = before
                else:
                    slots = ("",)
            taken = [one for table in dict.fromkeys(slots) for one in found.get(table, ())]
            if len(taken) != len(slots) or any(
                len(found[table]) != slots.count(table) for table in slots
            ):
                continue
            nearness, order = kind.fit(words, {word for _, of in taken for word in of})
            if nearness:
                key = tuple(name for name, _ in taken)
                fits.append(_Fit(nearness, kind, key[::-1] if order == "yx" else key))
        return tuple(fits)

    def _named(self, table: str, words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Return the names of a table that are in a question, in their order, without those within
        longer ones."""
        asked = set(words)
        names = [
            (name, text) for text, name in self._values[table].items() if asked.issuperset(text)
        ]
        longest = [one for one in names if not any(set(one[1]) < set(other[1]) for other in names)]
        return sorted(longest, key=lambda one: words.index(one[1][0]))

    def _said(self, fit: _Fit, talked: DialogueFacts) -> list[str]:
        kind = fit.kind
        key = fit.key
        if kind.name == "same" and talked.kind is not None:
            kind = talked.kind
        elif kind.name.startswith("its "):
            is_known = talked.kind is not None and talked.kind.slots == ("country",)
            kind = self._kinds[kind.name.removeprefix("its ")]
            if is_known:
                key = talked.key
            else:
                key = ("",)
        elif kind.name.startswith("told "):
            return self._told(kind.name.removeprefix("told "), key[0] if key else "", talked)
        talked.kind = kind
        talked.key = key
        return kind.answers(key)

    def _told(self, about: str, whose: str, talked: DialogueFacts) -> list[str]:
        value = talked.told.get(f"{about} {whose}")
        if value is None and talked.has_missed:
            return []
        return [
            _filled(
                self._replies[f"{'not told' if value is None else 'answer'} {about}"],
                value or "",
                whose,
            )
        ]

    def _told_by(self, text: str, talked: DialogueFacts) -> str:
        """Note what a message tells and return the answer to it; "" where it tells nothing."""
        text = re.sub(
            r"(?i)^im\b",
            "I'm",
            _BEFORE_TOLD.sub("", " ".join(text.replace("’", "'").split()).rstrip(".! ")),
        )
        lowered = text.lower()
        for begin, end, told in self._tells:
            about, _, whose = told.partition(" ")
            value = text[len(begin) : len(text) - len(end)]
            matches = lowered.startswith(begin) and lowered.endswith(end)
            if matches and self._told_values[about].fullmatch(value):
                about = about.removeprefix("plain-")
                if about in ("name", "relation", "city"):
                    value = value[:1].upper() + value[1:]
                talked.told[f"{about} {whose}"] = value
                return _filled(self._replies[f"reply {about}"], value, whose)
        return ""

    def _spelt(self, word: str) -> str:
        """Return a word, or the only known one from which it differs by one slip of the fingers."""
        if word in self._words or len(word) < _MISSPELT_CHARS or not word.isalpha():
            return word
        near = [known for known in self._by_letter.get(word[0], ()) if _is_slip(word, known)]
        if len(near) == 1:
            return near[0]
        return word


def _says_alike(words: Sequence[str], row: Sequence[str], shared: Sequence[str]) -> bool:
    """Whether two questions have the shared words in the same order, and speak of the same
    persons."""
    has_order = list(shared) == [word for word in words if word in shared]
    return has_order and all(of.isdisjoint(words) == of.isdisjoint(row) for of in (_I, _YOU))


def _is_slip(word: str, known: str) -> bool:
    """Whether two words differ by one letter: another, one more, one less, or two that changed
    places."""
    if abs(len(word) - len(known)) > 1:
        return False
    n = 0
    while n < min(len(word), len(known)) and word[n] == known[n]:
        n += 1
    if len(word) != len(known):
        longer, shorter = sorted((word, known), key=len, reverse=True)
        return longer[n + 1 :] == shorter[n:]
    has_turned = word[n : n + 2] == known[n : n + 2][::-1] and word[n + 2 :] == known[n + 2 :]
    return has_turned or word[n + 1 :] == known[n + 1 :]


def _filled(text: str, value: str, whose: str) -> str:
    if value[:1].lower() in tuple("aeiou"):
        article = "an"
    else:
        article = "a"
    said = text.replace("{an v}", f"{article} {value}").replace("{v}", value).replace("{k}", whose)
    return said[:1].upper() + said[1:]


def _kind(one: dict[str, Any]) -> Kind:
    rows: dict[tuple[str, ...], str] = {}
    for ask in one["asks"]:
        words, _, order = ask.partition(" <")
        rows[tuple(words.split())] = order or "xy"
    vocabulary = frozenset(word for row in rows for word in row if word[0] != "#") - _TURNING
    if not one["ordered"]:
        sets = frozenset(map(frozenset, rows))
    else:
        sets = frozenset()
    return Kind(
        one["name"], tuple(one["slots"]), rows, one["ordered"], sets, vocabulary, one["says"]
    )

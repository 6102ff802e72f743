"""Questions of the starter model's training: which one a message asks, and the answers to it.

A question is known if its important words are those of a trained wording, apart from names and
numbers. A misspelt long word counts as the known word that is closest to it. A question is near a
wording if it has most of its words and no words that are foreign to its kind; then the model
chooses between that answer and saying that it does not know. Statements that people make about
themselves, and ask for later, are recognized as whole sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

from app.text.record import record

MAX_MESSAGES = 30
"""Number of earlier messages that are searched for statements, and for the meaning of "its"."""
MAX_CHARS = 200
"""Limit on the length of a message that the model understands."""
NUMBER = "number"
_MIN_MISSPELT_CHARS = 6
"""Length from which words are checked for misspelling."""
_WORD = re.compile(
    r"\d+(?:st|nd|rd|th)\b|\d+(?:[.,]\d+)*|[^\W\d_][^\W_]*(?:'[^\W_]+)*|(?<=\d)[()]|[()](?=\d)|[^\w\s.,!?:;'\"()…“”]|_"
)
SELF_WORDS = re.compile(r"\b(?:i|i'm|im|me|my|we|our)\b")
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
"""Polite phrases around a question."""
_BEFORE_STATEMENT = re.compile(
    r"(?i:(?:please|hello|hi|hi there|hey|actually|no, wait|sorry, i meant|let me correct "
    r"that|i was wrong|ok|well)"
    r"[,.:!]? )+"
)
_FILLER_WORDS = frozenset(
    {
        "a", "an", "the", "is", "are", "of", "in", "on", "at", "to", "for", "it", "and", "so",
        "does", "do", "has",
        "have", "what", "which", "ok", "okay", "well", "now",
    }
)  # fmt: skip
_I_WORDS = frozenset({"i", "i'm", "im", "i'd", "my", "me", "am"})
_YOU_WORDS = frozenset({"you", "your", "you're", "yours", "u"})
_QUESTION_WORDS = frozenset({"how", "who", "where", "when", "many", "much"})
_REVERSING_WORDS = frozenset(
    {"not", "no", "never", "except", "without", "than", "was", "were", "will", "why"}
)
"""Words that reverse a question, or make it another one."""
LIGHT_WORDS = frozenset(
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
"""Words with little meaning. They do not count for the similarity of two questions, nor in ordered
wordings."""
_MIN_SIMILARITY = 0.6
"""Share of common words from which a question is near a wording without slots."""
_MIN_SLOT_SIMILARITY = 0.5
"""The same for a wording with slots."""
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


def _add(x: int, y: int) -> str:
    if max(x, y) >= 100:
        return ""
    return f"{x} + {y} = {x + y}."


def _subtract(x: int, y: int) -> str:
    if max(x, y) >= 100:
        return ""
    return f"{x} - {y} = {x - y}."


def _multiply(x: int, y: int) -> str:
    is_known = max(x, y) < 13 or (min(x, y) < 10 and max(x, y) < 100)
    if not is_known:
        return ""
    return f"{x} x {y} = {x * y}."


def _divide(x: int, y: int) -> str:
    is_known = 0 < y < 13 and x % y == 0 and x // y < 13
    if not is_known:
        return ""
    return f"{x} / {y} = {x // y}."


def _bigger(x: int, y: int) -> str:
    if x == y or max(x, y) >= 100:
        return ""
    return f"{max(x, y)} is bigger."


def _smaller(x: int, y: int) -> str:
    if x == y or max(x, y) >= 100:
        return ""
    return f"{min(x, y)} is smaller."


_SUMS: dict[str, Callable[[int, int], str]] = {
    "+": _add,
    "-": _subtract,
    "x": _multiply,
    "/": _divide,
    "bigger": _bigger,
    "smaller": _smaller,
}
"""Functions of two numbers that return the answer; "" if training has no such sum."""


def important_words(text: str) -> list[str]:
    """Return the important words of a question in lower case and in their order; numbers look like
    ``#17``."""
    text = normalize(text)
    text = re.sub(r"\b(who|how|where)'s\b", r"\1 is", text)
    text = re.sub(r"\bwhat(?:'?s|'re| is)\b", "what", text)
    text = re.sub(r"(?<=[^\W\d])-(?=[^\W\d])", " ", text)
    text = re.sub(r"(?<=\d)\s*[x×]\s*(?=\d)", " x ", text)
    words = [word.removesuffix("'s") for word in _WORD.findall(_FRAME.sub(" ", text))]
    important = [word for word in _with_numbers(words) if word not in _FILLER_WORDS]
    return important or _with_numbers(_WORD.findall(text))


def normalize(text: str) -> str:
    """Return a text in lower case, with one type of apostrophe and single spaces."""
    return " ".join(text.lower().replace("’", "'").split())


def _with_numbers(words: Sequence[str]) -> list[str]:
    """Return words with numbers, written out or not, as ``#17``."""
    result: list[str] = []
    previous = ""
    for word in words:
        if previous in _TENS and 0 < _NUMBERS.get(word, 0) < 10:
            result[-1] = f"#{_TENS[previous] + _NUMBERS[word]}"
        elif word in _NUMBERS:
            result.append(f"#{_NUMBERS[word]}")
        elif word.isdecimal() and len(word) < 9:
            result.append(f"#{int(word)}")
        else:
            result.append(word)
        previous = word
    return result


class DialogueFacts:
    """Facts from the messages of a conversation.

    Attributes:
        statements: Values that the user has stated, by subject.
        has_unknown: Whether a message was not understood; it may have stated something.
        question: Kind of the last question; None before the first.
        key: Values in the slots of the last question.
    """

    def __init__(self) -> None:
        self.statements: dict[str, str] = {}
        self.has_unknown = False
        self.question: QuestionKind | None = None
        self.key: tuple[str, ...] = ()

    def add_unknown(self, text: str) -> None:
        """Add a message that was not understood. If it is about the user, it may change earlier
        statements."""
        if SELF_WORDS.search(normalize(text)):
            self.has_unknown = True
            self.statements.clear()


@record
class QuestionKind:
    """Questions that one table answers."""

    name: str
    slots: tuple[str, ...]
    """Tables whose names occur in a question of this kind."""
    wordings: dict[tuple[str, ...], str]
    """Order of the numbers, ``xy`` or ``yx``, by the words of each wording without the slots."""
    is_ordered: bool
    """Whether the order of words matters. The wordings then have ``*`` for slots."""
    word_sets: frozenset[frozenset[str]]
    """Sets of words of the wordings, if their order does not matter."""
    vocabulary: frozenset[str]
    """All words of the wordings, without those that reverse a question."""
    replies: dict[str, list[str]]
    """Answers by the values of the slots, joined by ``|``. ``*`` as the last value means all
    others."""

    def fit(self, words: Sequence[str], slot_words: Collection[str]) -> tuple[float, str]:
        """Return the similarity of a question to the closest wording, and the order of its numbers.

        From 1 on, all words of the question are in the wording; a higher value means more words. 0
        means that it is too different.
        """
        if self.is_ordered:
            wording = tuple(
                "*" if word in slot_words else word for word in words if word not in LIGHT_WORDS
            )
            if wording in self.wordings:
                return 1.0 + len(words), self.wordings[wording]
            return 0.0, ""

        other_words = [word for word in words if word not in slot_words]
        if frozenset(other_words) in self.word_sets:
            return 1.0 + len(words), "xy"
        return self._similarity(other_words), "xy"

    def _similarity(self, words: Sequence[str]) -> float:
        """Return the share of words in common with the closest wording; 0 if it is too small."""
        question_words = {word for word in words if word not in LIGHT_WORDS}
        if not question_words <= self.vocabulary:
            return 0.0
        best = 0.0
        for wording in self.wordings:
            common = [word for word in wording if word in question_words]
            n_all = len(question_words.union(wording) - LIGHT_WORDS)
            share = len(set(common)) / max(1, n_all)
            if share <= best or _QUESTION_WORDS.issuperset(common):
                continue
            if self.slots or (len(common) > 1 and _is_similar(words, wording, common)):
                best = share

        minimum = _MIN_SIMILARITY
        if self.slots:
            minimum = _MIN_SLOT_SIMILARITY
        if best < minimum:
            return 0.0
        return best * 0.99

    def answers(self, key: Sequence[str]) -> list[str]:
        """Return the answers for the values of the slots."""
        if self.name in _SUMS:
            answer = _SUMS[self.name](int(key[0]), int(key[1]))
            if not answer:
                return []
            return [answer]
        exact = self.replies.get("|".join(key))
        return exact or self.replies.get("|".join([*key[:-1], "*"]), [])


@record
class _Fit:
    """Kind that a question may have, and the values of its slots."""

    similarity: float
    question: QuestionKind
    key: tuple[str, ...]


class KnownQuestions:
    """The questions in the file that ``starter.make_fence`` writes.

    Args:
        data: Content of the file.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._names = {
            table: {tuple(text.split()): name for text, name in names.items()}
            for table, names in data["values"].items()
        }
        self._questions = {fields["name"]: _parse_kind(fields) for fields in data["kinds"]}
        self._statements: list[tuple[str, str, str]] = [
            tuple(statement) for statement in data["tells"]
        ]
        self._value_patterns = {
            subject: re.compile(pattern) for subject, pattern in data["told values"].items()
        }
        self._replies: dict[str, str] = data["replies"]

        name_words = {word for names in self._names.values() for text in names for word in text}
        wording_words = {
            word
            for question in self._questions.values()
            for wording in question.wordings
            for word in wording
        }
        self._words = name_words | wording_words | set(_NUMBERS) | _FILLER_WORDS
        self._words_by_letter: dict[str, list[str]] = {}
        for word in self._words:
            self._words_by_letter.setdefault(word[:1], []).append(word)
        self._cached_fits = lru_cache(2 * MAX_MESSAGES)(self._find_fits)

    def answers(self, text: str, facts: DialogueFacts) -> tuple[list[str], bool]:
        """Return the answers to a message, and whether its wording is known exactly.

        Args:
            text: Text of the message.
            facts: Facts of the conversation, to which those of the message are added.
        """
        if len(text) > MAX_CHARS:
            facts.add_unknown(text)
            return [], False

        earlier_slots: tuple[str, ...] = ()
        if facts.question is not None:
            earlier_slots = facts.question.slots
        fits = self._cached_fits(text, earlier_slots)
        best = max((fit.similarity for fit in fits), default=0.0)
        is_exact = best >= 1
        if not is_exact:
            reply = self._reply_to_statement(text, facts)
            if reply:
                return [reply], True
            facts.add_unknown(text)

        candidates = [fit for fit in fits if fit.similarity == best or not is_exact]
        candidates = [fit for fit in candidates if fit.question.name == "same"] or candidates
        answers = [answer for fit in candidates for answer in self._answers_to(fit, facts)]
        return list(dict.fromkeys(answers)), is_exact

    def _find_fits(self, text: str, earlier_slots: tuple[str, ...]) -> tuple[_Fit, ...]:
        """Return the kinds that a question may have.

        Args:
            text: Text of the question.
            earlier_slots: Slots of the question before.
        """
        words = [self._correct(word) for word in important_words(text)]
        names = {table: self._names_in(table, words) for table in self._names}
        # A "#" alone is a word that the user typed.
        names[NUMBER] = [(word[1:], (word,)) for word in words if word[0] == "#" and word != "#"]

        fits = []
        for question in self._questions.values():
            slots = question.slots
            if question.name == "same":
                slots = earlier_slots if len(earlier_slots) == 1 else ("",)
            slot_names = [name for table in dict.fromkeys(slots) for name in names.get(table, ())]
            has_all = len(slot_names) == len(slots) and all(
                len(names[table]) == slots.count(table) for table in slots
            )
            if not has_all:
                continue
            slot_words = {word for _, name_words in slot_names for word in name_words}
            similarity, order = question.fit(words, slot_words)
            if similarity:
                key = tuple(name for name, _ in slot_names)
                fits.append(_Fit(similarity, question, key[::-1] if order == "yx" else key))
        return tuple(fits)

    def _names_in(self, table: str, words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Return the names of a table in a question, in their order, without names within longer
        ones."""
        question_words = set(words)
        names = [
            (name, name_words)
            for name_words, name in self._names[table].items()
            if question_words.issuperset(name_words)
        ]
        longest = [
            (name, name_words)
            for name, name_words in names
            if not any(set(name_words) < set(other_words) for _, other_words in names)
        ]
        return sorted(longest, key=lambda named: words.index(named[1][0]))

    def _answers_to(self, fit: _Fit, facts: DialogueFacts) -> list[str]:
        question = fit.question
        key = fit.key
        if question.name == "same" and facts.question is not None:
            question = facts.question
        elif question.name.startswith("its "):
            is_about_country = facts.question is not None and facts.question.slots == ("country",)
            question = self._questions[question.name.removeprefix("its ")]
            key = facts.key if is_about_country else ("",)
        elif question.name.startswith("told "):
            return self._recall(question.name.removeprefix("told "), key[0] if key else "", facts)
        facts.question = question
        facts.key = key
        return question.answers(key)

    def _recall(self, subject: str, owner: str, facts: DialogueFacts) -> list[str]:
        """Return the answer to a question about an earlier statement."""
        value = facts.statements.get(f"{subject} {owner}")
        if value is not None:
            return [_fill(self._replies[f"answer {subject}"], value, owner)]
        if facts.has_unknown:
            return []
        return [_fill(self._replies[f"not told {subject}"], "", owner)]

    def _reply_to_statement(self, text: str, facts: DialogueFacts) -> str:
        """Add a statement to the facts, and return the reply to it; "" without a statement."""
        text = " ".join(text.replace("’", "'").split()).rstrip(".! ")
        text = _BEFORE_STATEMENT.sub("", text)
        text = re.sub(r"(?i)^im\b", "I'm", text)
        lower_text = text.lower()
        for beginning, end, target in self._statements:
            subject, _, owner = target.partition(" ")
            value = text[len(beginning) : len(text) - len(end)]
            is_match = lower_text.startswith(beginning) and lower_text.endswith(end)
            if not is_match or not self._value_patterns[subject].fullmatch(value):
                continue
            subject = subject.removeprefix("plain-")
            if subject in ("name", "relation", "city"):
                value = value[:1].upper() + value[1:]
            facts.statements[f"{subject} {owner}"] = value
            return _fill(self._replies[f"reply {subject}"], value, owner)
        return ""

    def _correct(self, word: str) -> str:
        """Return a word, or the only known word that differs by one typing error."""
        if word in self._words or len(word) < _MIN_MISSPELT_CHARS or not word.isalpha():
            return word
        similar = [
            known for known in self._words_by_letter.get(word[0], ()) if _is_typo(word, known)
        ]
        if len(similar) == 1:
            return similar[0]
        return word


def _is_similar(words: Sequence[str], wording: Sequence[str], common: Sequence[str]) -> bool:
    """Whether two questions have their common words in the same order, and are about the same
    persons."""
    has_same_order = list(common) == [word for word in words if word in common]
    return has_same_order and all(
        persons.isdisjoint(words) == persons.isdisjoint(wording)
        for persons in (_I_WORDS, _YOU_WORDS)
    )


def _is_typo(word: str, known: str) -> bool:
    """Whether two words differ by one letter: another one, an additional or missing one, or two
    that are swapped."""
    if abs(len(word) - len(known)) > 1:
        return False
    n = 0
    while n < min(len(word), len(known)) and word[n] == known[n]:
        n += 1
    if len(word) != len(known):
        longer, shorter = sorted((word, known), key=len, reverse=True)
        return longer[n + 1 :] == shorter[n:]
    is_swapped = word[n : n + 2] == known[n : n + 2][::-1] and word[n + 2 :] == known[n + 2 :]
    return is_swapped or word[n + 1 :] == known[n + 1 :]


def _fill(template: str, value: str, owner: str) -> str:
    article = "an" if value[:1].lower() in tuple("aeiou") else "a"
    text = template.replace("{an v}", f"{article} {value}")
    text = text.replace("{v}", value).replace("{k}", owner)
    return text[:1].upper() + text[1:]


def _parse_kind(fields: dict[str, Any]) -> QuestionKind:
    wordings: dict[tuple[str, ...], str] = {}
    for ask in fields["asks"]:
        words, _, order = ask.partition(" <")
        wordings[tuple(words.split())] = order or "xy"
    vocabulary = {word for wording in wordings for word in wording if word[0] != "#"}
    word_sets: frozenset[frozenset[str]] = frozenset()
    if not fields["ordered"]:
        word_sets = frozenset(map(frozenset, wordings))
    return QuestionKind(
        fields["name"],
        tuple(fields["slots"]),
        wordings,
        fields["ordered"],
        word_sets,
        frozenset(vocabulary) - _REVERSING_WORDS,
        fields["says"],
    )

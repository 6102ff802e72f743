"""Conversations: topics in a row, with facts to remember, typed as people type."""

from __future__ import annotations

from starter.grammar import capital
from starter.text import arithmetic, calendar, copying, facts, geography, memory, unknown
from starter.text.rephrasing import rephrased
from starter.text.tables import Turn, Writer

TOPICS = {
    "geography": 34,
    "arithmetic": 30,
    "calendar": 10,
    "opposites": 8,
    "relations": 14,
    "everyday": 12,
    "jalopy": 8,
    "talk": 10,
    "unknown": 12,
    "tell": 9,
    "ask": 13,
    "echo": 1,
    "last": 1,
}
"""Weights of the topics."""
_TOPICS_OF_MORE = TOPICS | {
    "geography": 48,
    "everyday": 22,
    "jalopy": 14,
    "talk": 28,
    "relations": 22,
    "opposites": 10,
    "calendar": 26,
    "ask": 18,
    "tell": 10,
    "unknown": 13,
    "arithmetic": 36,
}
"""Weights of the topics when questions have many wordings."""
_TOPICS_AT_THE_END = _TOPICS_OF_MORE | {"geography": 56}
"""Weights of the topics while the rates fall; more geography, since a list of neighbours must be
complete."""
_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the starter model of Jalopy.",
    "Answer briefly.",
    "Be kind.",
    "You are a friendly teacher.",
    "You are a helpful assistant. Answer in English.",
    "Answer in one sentence.",
    "Keep it short.",
    "You know a lot about countries.",
)
_BEFORE = (
    "Please tell me: ",
    "Hey, ",
    "OK, ",
    "So, ",
    "And ",
    "Well, ",
    "Quick question: ",
    "A question: ",
    "Now: ",
    "Hi! ",
    "Hello. ",
    "Thanks. ",
    "I wonder: ",
    "Please: ",
    "Tell me, ",
    "Next: ",
    "One more: ",
    "Good. ",
    "Say, ",
)
_BEHIND = (
    " Please.",
    " Thanks.",
    " Thank you.",
    " I forgot.",
    " Just the answer.",
    " I need it for school.",
    " Do you know?",
    " Tell me.",
    " please",
)
_LENGTHS = ((1, 30), (2, 16), (3, 14), (4, 10), (6, 12), (8, 8), (12, 6), (20, 3), (40, 1))
"""Numbers of topics in a conversation, with weights."""


def conversation(
    rng: Writer, share_short: float = 0.0, share_copying: float = 0.0
) -> tuple[str, list[Turn]]:
    """Return a random conversation.

    Args:
        rng: the random choices.
        share_short: share of conversations with one topic, or with a fact and a question about it.
            Models learn sooner to look at the question if there is little other text.
        share_copying: share of conversations that can only be answered from their own text. Without
            them, models learn late to look back for names and for the steps of sums.

    Returns:
        (system prompt, mostly ""; turns).
    """
    if share_copying and rng.random() < share_copying:
        return "", _looking_back(rng)
    person = memory.Person()
    turns: list[Turn] = []
    n_topics = rng.choices([n for n, _ in _LENGTHS], [weight for _, weight in _LENGTHS])[0]
    # In some conversations much is told and asked, in most little.
    tells_much = n_topics > 1 and rng.random() < 0.25
    if share_short and rng.random() < share_short:
        tells_much = rng.random() < 0.25
        n_topics = 3 if tells_much else 1
    topics = (
        _TOPICS_AT_THE_END if rng.share_endless else _TOPICS_OF_MORE if rng.share_more else TOPICS
    )
    if tells_much:
        topics = topics | {"tell": 25, "ask": 40}
    for _ in range(n_topics):
        topic = rng.choices(list(topics), list(topics.values()))[0]
        turns += [
            (as_typed(question, rng, topic), answer)
            for question, answer in _topic(topic, person, turns, rng)
        ]
    if not turns:
        turns = geography.turns(rng)
    return (rng.choice(_SYSTEM_PROMPTS) if rng.random() < 0.06 else ""), turns


def _looking_back(rng: Writer) -> list[Turn]:
    """Return turns that need text from earlier turns."""
    person = memory.Person()
    turns: list[Turn] = []
    for _ in range(rng.choice((2, 3, 4, 5, 6, 8))):
        if rng.random() < 0.45:
            turns += copying.turns(rng)
        elif (person.told or person.pets) and rng.random() < 0.6:
            turns += memory.ask(person, rng)
        else:
            turns += memory.tell(person, rng)
    return turns


def _topic(topic: str, person: memory.Person, so_far: list[Turn], rng: Writer) -> list[Turn]:
    if topic == "tell":
        return memory.tell(person, rng)
    if topic == "ask":
        return memory.ask(person, rng)
    if topic == "last":
        return memory.last_message(so_far, rng)
    return {
        "geography": geography.turns,
        "arithmetic": arithmetic.turns,
        "calendar": calendar.turns,
        "opposites": facts.opposite_turns,
        "relations": facts.relation_turns,
        "everyday": lambda rng: facts.listed_turns("everyday", rng),
        "jalopy": lambda rng: facts.listed_turns("jalopy", rng),
        "talk": lambda rng: facts.listed_turns("talk", rng),
        "unknown": unknown.turns,
        "echo": memory.echo,
    }[topic](rng)


def as_typed(text: str, rng: Writer, topic: str = "") -> str:
    """Write a message as people type it: with a word before or behind, in small letters, without
    its last sign."""
    copies = topic in ("tell", "echo", "last")
    if not copies and rng.random() < 0.25:
        text = capital(rephrased(text, rng))
    if not copies and len(text) > 8 and rng.random() < 0.10:
        opening = rng.choice(_BEFORE)
        text = opening + (
            text
            if text[:2].isupper() or opening.endswith((". ", "! "))
            else text[0].lower() + text[1:]
        )
    if not copies and len(text) > 8 and rng.random() < 0.05:
        text += rng.choice(_BEHIND)
    if rng.random() < 0.2:
        text = text.replace("What is ", rng.choice(("What's ", "Whats "))).replace(
            "what is ", rng.choice(("what's ", "whats "))
        )
    if rng.random() < 0.12:
        text = text.replace("'", "’")
    if rng.random() < 0.3 and text.endswith(("?", ".", "!")):
        text = text[:-1]
    if topic != "tell" and rng.random() < 0.25:
        text = text.lower()
    if topic != "tell" and len(text) > 14 and rng.random() < 0.03:
        index = rng.randrange(1, min(9, len(text) - 1))
        text = text[:index] + text[index + 1] + text[index] + text[index + 2 :]
    return text


def wordings() -> list[str]:
    """Return the wordings of all questions that the model is to answer with knowledge or memory.

    Those of ``unknown`` are left out: their slots stand for anything.
    """
    return [
        wording
        for topic in (geography, arithmetic, calendar, copying, facts, memory)
        for wording in topic.wordings()
    ]

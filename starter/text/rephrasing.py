"""Rules that rephrase a question: indirectly, politely, or with another verb.

Phrases of the written test are left out on purpose ("Could you tell me", "Remind me", "I'd like to
know", ...).
"""

from __future__ import annotations

import re
from random import Random

_INDIRECT = (
    "I was wondering",
    "I would love to know",
    "Let me know",
    "Can you find out",
    "Someone asked me",
    "Please say",
    "I have to find out",
    "My son wants to know",
    "Would you tell me",
    "Would you please say",
    "Can you please tell me",
    "Can you also say",
    "Can anyone say",
    "Explain to me",
    "I keep forgetting",
    "I am curious",
    "Will you tell me",
    "It would help to know",
)
_DIRECT = (
    "May I ask:",
    "Here is a question:",
    "A short one:",
    "Let me ask:",
    "For a quiz:",
    "Riddle me this:",
    "Try this:",
    "Just curious:",
    "Help me out:",
)
_IN_ORDER = re.compile(r"(?:What is|What's) ((?:the|my|a|an) .+)\?")
_HOW_TO = re.compile(r"How do I (.+)\?")
_DOES = re.compile(r"What does (.+) (mean|do|measure|become)\?")
_ORDER = re.compile(
    r"(Name|List|Tell me|Give "
    r"me|Say|Count|Add|Multiply|Divide|Subtract|Explain|Calculate|Compute) (.+)\."
)
_QUESTION = re.compile(r"(?:What|Which|Who|Where|When|How|Is|Does|Do|Are|In|On)\b.*\?")


def rephrased(text: str, rng: Random) -> str:
    """Return a question in other words, or unchanged if no rule applies."""
    for expression, ways in _RULES:
        match = expression.fullmatch(text)
        if match and rng.random() < 0.7:
            first = match[1][0].lower() + match[1][1:] if expression is _ORDER else match[1]
            return rng.choice(ways).format(
                first, *match.groups()[1:], indirect=rng.choice(_INDIRECT)
            )
    if _QUESTION.fullmatch(text):
        return f"{rng.choice(_DIRECT)} {text[0].lower()}{text[1:]}"
    return text


_RULES = (
    (
        _IN_ORDER,
        (
            "{indirect} what {0} is.",
            "{indirect} what {0} is?",
            "{indirect}: {0}?",
            "{0}?",
            "What might {0} be?",
            "So {0} is what?",
        ),
    ),
    (
        _DOES,
        (
            "{indirect} what {0} {1}s.",
            "What will {0} {1}?",
            "{0}, what does it {1}?",
            "{indirect}: what does {0} {1}?",
        ),
    ),
    (
        _HOW_TO,
        (
            "How would I {0}?",
            "How could I {0}?",
            "Is there a way to {0}?",
            "What must I do to {0}?",
            "I want to {0}.",
            "I would like to {0}.",
            "{indirect} how to {0}.",
            "In which way do I {0}?",
            "What is needed to {0}?",
            "Show me how to {0}.",
        ),
    ),
    (
        _ORDER,
        (
            "Would you please {0} {1}?",
            "Will you {0} {1}?",
            "I want you to {0} {1}.",
            "Can you please {0} {1}?",
            "You should {0} {1}.",
            "Now {0} {1}!",
        ),
    ),
)

"""Threads and memory modes in use and saved; and ``/threads`` in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from app.program.refusals import Refusal
from app.program.settings import DEFAULT_KV_TYPE
from app.program.state import TunedChoice
from app.text.figures import counted
from app.text.record import record


class ChoiceOrigin(Enum):
    """Origin of the choice in use."""

    START = "start"
    """Saved, or the engine's choice."""
    HAND = "hand"
    """Set by the user for this run. The threads screen can save it."""
    TRIAL = "trial"
    """Measured, and used for this run."""


@record
class ThreadsInUse:
    """The choice in use and the saved one."""

    now: TunedChoice
    remembered: TunedChoice | None = None
    """Saved choice for this machine and model; None if there is none."""
    most: int = 1
    """Largest possible number of threads."""
    origin: ChoiceOrigin = ChoiceOrigin.START
    start_kv_type: str = ""
    """Type of the KV cache with which the model was opened; "" if unknown."""

    @property
    def has_other_kv_type(self) -> bool:
        """Whether the user has changed the type of the KV cache."""
        return self.start_kv_type not in ("", self.now.kv_type)

    @property
    def is_saved(self) -> bool:
        """Whether the choice in use is the saved one; its KV type is for the next start."""
        saved = self.remembered
        if saved is None:
            return False
        if self.has_other_kv_type and saved.kv_type != self.now.kv_type:
            return False
        if self.origin is ChoiceOrigin.HAND and self.now.weights == "huge" != saved.weights:
            return False
        return is_in_use(replace(saved, kv_type=""), self.now)


@record
class ChoiceChange:
    """Change of the choice in use, as the engine carried it out."""

    begin_s: float
    """Time of the last step with the previous choice."""
    end_s: float
    """Time of the first step with the new one; moving the weights takes seconds."""
    before: TunedChoice
    after: TunedChoice
    trouble: str = ""
    """Reason why a part of the change failed; empty if none did."""

    @property
    def is_felt_in_writing(self) -> bool:
        """Whether anything changed that matters for writing."""
        return writing_part(self.before) != writing_part(self.after)


def writing_part(choice: TunedChoice) -> TunedChoice:
    """Return a choice without what does not matter for writing."""
    return TunedChoice(choice.decode, 0, choice.pinned, choice.weights)


def name_threads(n_threads: int, kind_of: Callable[[int], str]) -> str:
    """Name a number of threads by the cores that they need: "3 threads: 2 cores + 1 sibling".

    Args:
        kind_of: returns the kind of the CPU that the last of some threads needs, such as "core".
    """
    kinds = [kind_of(number) for number in range(1, n_threads + 1)]
    cores = " + ".join(counted(kinds.count(kind), kind) for kind in dict.fromkeys(kinds))
    return f"{counted(n_threads, 'thread')}: {cores}"


def choice_to_keep(in_use: ThreadsInUse) -> TunedChoice | None:
    """Return what saving the choice set by hand would save; None if there is none, or it is saved.

    The memory mode of the weights is saved if it is not the usual one.
    """
    if in_use.origin is not ChoiceOrigin.HAND or in_use.is_saved:
        return None
    saved = in_use.remembered or TunedChoice(1, 1)
    weights = saved.weights
    if weights or in_use.now.weights == "huge":
        weights = in_use.now.weights
    kv_type = saved.kv_type
    if in_use.has_other_kv_type:
        kv_type = in_use.now.kv_type
    return replace(in_use.now, weights=weights, kv_type=kv_type)


USAGE = "/threads N sets both, /threads N M writing and reading"


def parse_threads(text: str, in_use: ThreadsInUse) -> TunedChoice:
    """Return the threads for one number (writing and reading) or two. Raises Refusal."""
    words = text.split()
    if not 1 <= len(words) <= 2 or not all(
        word.isascii() and word.isdigit() and len(word) < 5 for word in words
    ):
        raise Refusal(f"not a number of threads ({USAGE})")
    counts = [int(word) for word in words]
    for count in counts:
        if not 1 <= count <= in_use.most:
            raise Refusal(f"{count} threads are not possible (1 to {in_use.most})")
    return replace(in_use.now, decode=counts[0], prefill=counts[-1])


def describe_shortly(choice: TunedChoice) -> str:
    """Describe the threads that write, and what is unusual, in a few words."""
    words = [counted(choice.decode, "thread")]
    if choice.weights == "huge":
        words.append("huge pages")
    if choice.pinned:
        words.append("pinned")
    if choice.kv_type not in ("", DEFAULT_KV_TYPE):
        words.append(f"KV {choice.kv_type}")
    return " + ".join(words)


def choice_names(choice: TunedChoice, other: TunedChoice) -> tuple[str, str]:
    """Return short names of two choices, by what they differ in for writing."""
    names: tuple[list[str], list[str]] = ([], [])
    for words, named in zip(names, (choice, other), strict=True):
        if choice.decode != other.decode:
            words.append(counted(named.decode, "thread"))
        if choice.weights != other.weights:
            words.append("huge pages" if named.weights == "huge" else "mapped file")
        if choice.pinned != other.pinned:
            words.append("pinned" if named.pinned else "not pinned")
        if choice.kv_type != other.kv_type:
            words.append(f"KV {named.kv_type or DEFAULT_KV_TYPE}")
    first, second = (" + ".join(words) for words in names)
    return first, second


def describe(choice: TunedChoice) -> str:
    """Describe the threads, and the memory of weights if it is unusual."""
    if choice.pinned:
        pinned = ", each fixed to one core"
    else:
        pinned = ""
    if choice.weights == "huge":
        huge = ", weights in huge pages"
    else:
        huge = ""
    if choice.decode == choice.prefill:
        threads = counted(choice.decode, "thread")
    else:
        threads = f"{counted(choice.decode, 'thread')} writing, {choice.prefill} reading"
    kv_type = ""
    if choice.kv_type not in ("", DEFAULT_KV_TYPE):
        kv_type = f", KV cache {choice.kv_type}"
    return f"{threads}{pinned}{huge}{kv_type}"


def describe_in_use(in_use: ThreadsInUse) -> str:
    """Describe the choice in use and the one for the next start."""
    remembered = in_use.remembered
    if in_use.is_saved:
        later = "Saved for this machine and model"
    elif remembered is not None:
        later = f"Saved for next time: {describe(remembered)}"
    elif in_use.origin is ChoiceOrigin.START:
        later = "Nothing is saved yet"
    else:
        later = "For this run only"
    if remembered is not None and remembered.kv_type not in ("", in_use.now.kv_type):
        later += f". The next time it opens, its KV cache is {remembered.kv_type}"
    return f"{describe(in_use.now)}. {later}"


def is_in_use(remembered: TunedChoice, now: TunedChoice) -> bool:
    """Whether the saved choice is in use; its empty fields match anything."""
    threads = (remembered.decode, remembered.prefill, remembered.pinned) == (
        now.decode,
        now.prefill,
        now.pinned,
    )
    return (
        threads
        and remembered.weights in ("", now.weights)
        and remembered.kv_type in ("", now.kv_type)
    )

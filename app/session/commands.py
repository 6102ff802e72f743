"""Commands of a conversation, shared by the screen and the line mode, which print their results.

Each raises Refusal if its argument is not valid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.backend.engine_thread import EngineThread
from app.conversations.branches import branches_of, check_room, n_messages_of
from app.conversations.conversation import Conversation, Role
from app.conversations.export import save_as
from app.conversations.mark_rows import Marks, clean_tag, tags_text
from app.conversations.store import MOST_TITLE_CHARS, model_key
from app.documents.read import split_wanted
from app.forms.answer_form import AnswerForm
from app.machine.tuning.threads_in_use import (
    USAGE,
    ChoiceOrigin,
    ThreadsInUse,
    describe_in_use,
    parse_threads,
)
from app.program import state
from app.program.personas import Persona, persona_names, save_persona
from app.program.refusals import Refusal
from app.program.settings import AUTO, Source
from app.session.adapters import OFF, adapters_named, described
from app.session.adapters import USAGE as USAGE_OF_LORA
from app.session.chat_session import ChatSession
from app.session.compaction import SHOW, UNDO
from app.session.compaction import USAGE as USAGE_OF_COMPACT
from app.session.context_parts import describe_context
from app.session.model_prompt import checked_persona
from app.session.reply_options import (
    KEEP,
    RESET,
    THINK_USAGE,
    check_name,
    describe_form,
    describe_sampling,
    describe_thinking,
    parse_sampling,
    sampling_and_source,
)
from app.session.reply_options import USAGE as USAGE_OF_SET
from app.text.clean_text import clean_line, clean_text
from app.text.figures import counted
from app.text.record import record
from app.tools.toolbox import HOW_TO
from engine.prompt.thinking import ThinkingMode

MOST_ANSWERS = 4
"""Limit on answers that are written together: each more costs the others less than it gains
(engine/PERFORMANCE.md)."""
NO_MODEL = "no model is loaded: /models lists them, /model PATH opens one"
PRIVATE_LINE = (
    "Private conversation: nothing of it is saved, and it is gone after /new or at the program's "
    "end."
)
GONE = "the model no longer sees this message"
NOT_COMPARABLE = "there is no answer to compare with yet"
_REPLY = "reply"
_USAGE_OF_SCHEMA = "/schema FILE uses a JSON schema"


def message_to_edit(conversation: Conversation, argument: str) -> int:
    """Return the index of the message that ``/edit`` names.

    Args:
        argument: number of a question, ``reply`` for the last reply, or nothing for the last
            question.
    """
    messages = conversation.messages
    questions = [
        index
        for index, message in enumerate(messages)
        if message.role is Role.USER and not message.results
    ]
    if not questions:
        raise Refusal("there is no message to edit yet")
    if not argument:
        return questions[-1]
    if argument.lower() == _REPLY and messages[-1].role is Role.ASSISTANT:
        return len(messages) - 1
    if argument.isdecimal() and 1 <= int(argument) <= len(questions):
        return questions[int(argument) - 1]
    numbers = f"a number from 1 to {len(questions)}"
    raise Refusal(
        f"/edit takes {numbers}, `{_REPLY}` for the last reply, or nothing for your last message"
    )


def n_answers(argument: str) -> int:
    """Return the number of answers that ``/regen`` requests; 0 if it names another model."""
    if not argument:
        return 1
    if not argument.isdecimal():
        return 0
    if 1 <= int(argument) <= MOST_ANSWERS:
        return int(argument)
    raise Refusal(
        f"/regen takes how many answers are written next to each other, 2 to {MOST_ANSWERS}, "
        "another model, or nothing"
    )


def check_comparable(chat_session: ChatSession, path: Path) -> None:
    """Raise Refusal if a model cannot answer the last message as well."""
    conversation = chat_session.conversation
    model = chat_session.model
    if model is not None and model.server:
        raise Refusal("only models of this machine are compared, and this one runs on a server")
    if model is not None and os.path.realpath(model.path) == os.path.realpath(path):
        raise Refusal(f"{path.name} is the open model: /regen 2 writes two more answers")
    if conversation.is_empty or conversation.awaits_reply:
        raise Refusal(NOT_COMPARABLE)
    check_regenerable(conversation, 1)


def check_editable(conversation: Conversation, index: int) -> None:
    """Raise Refusal if a message cannot be edited."""
    if index < conversation.n_dropped:
        raise Refusal(GONE)
    if conversation.messages[index].results:
        raise Refusal("results of tools cannot be edited: edit the message before them")
    check_room(conversation, index)


def check_regenerable(conversation: Conversation, n_new: int) -> None:
    """Raise Refusal if the last reply has too many branches for new ones."""
    if not conversation.is_empty and not conversation.awaits_reply:
        check_room(conversation, len(conversation.messages) - 1, n_new)


@record
class BranchChoice:
    """Branch that ``/branch`` shows or deletes."""

    index: int
    """Index of its first message."""
    number: int
    """Number among the branches from there, from 0."""
    is_deleted: bool = False
    """Whether the shown branch is deleted instead."""


def chosen_branch(conversation: Conversation, argument: str) -> BranchChoice:
    """Return the branch that ``/branch`` chooses at the last message with branches.

    Args:
        argument: number of the branch from 1, ``delete``, or nothing for the next one.
    """
    messages = conversation.messages
    indices = [index for index, message in enumerate(messages) if message.alternatives]
    if not indices:
        raise Refusal("there is only one branch: editing or /regen begins another")
    message = messages[indices[-1]]
    n_branches = len(message.alternatives) + 1
    if argument.lower() == "delete":
        return BranchChoice(indices[-1], message.n_older, is_deleted=True)
    if not argument:
        return BranchChoice(indices[-1], (message.n_older + 1) % n_branches)
    if argument.isdecimal() and 1 <= int(argument) <= n_branches:
        return BranchChoice(indices[-1], int(argument) - 1)
    raise Refusal(
        f"/branch takes a number from 1 to {n_branches}, `delete`, or nothing for the next branch"
    )


def branch_line(conversation: Conversation, index: int) -> str:
    """Return a line that says which branch is shown, and where it begins."""
    message = conversation.messages[index]
    number = number_of_question(conversation, index)
    if message.role is Role.ASSISTANT:
        return f"{message.branch_mark} from {_REPLY} {number}".lstrip()
    return f"{message.branch_mark} from message {number}".lstrip()


def delete_branch_question(conversation: Conversation, index: int) -> str:
    """Return the question whether to delete the shown branch from a message."""
    branch = branches_of(conversation.messages[index:])[conversation.messages[index].n_older]
    n_later = n_messages_of(branch) - 1
    question = f"Delete this branch {branch_line(conversation, index)}"
    if n_later:
        question += f", with the {counted(n_later, 'message')} after it"
    return f"{question}?"


def number_of_question(conversation: Conversation, index: int) -> int:
    """Return the number of the question that a message is, or belongs to."""
    messages = conversation.messages[: index + 1]
    return sum(message.role is Role.USER and not message.results for message in messages)


def edit_title(conversation: Conversation, index: int) -> str:
    """Return a title such as "editing message 2"."""
    number = number_of_question(conversation, index)
    if conversation.messages[index].role is Role.ASSISTANT:
        return f"editing {_REPLY} {number}"
    return f"editing message {number}"


def new_system(text: str) -> str | None:
    """Return the system prompt that ``/system`` names; None to remove it."""
    if text == "-":
        return None
    return clean_text(text)


def replace_system(system: str | None) -> Callable[[Conversation], None]:
    """Return a change of a conversation to another system prompt; None for no system prompt."""

    def change(conversation: Conversation) -> None:
        conversation.system = system or None
        conversation.options = replace(conversation.options, persona="")

    return change


def system_line(system: str | None) -> str:
    """Return what to say about a new system prompt."""
    if system:
        return "this system prompt holds from the next message on"
    return "no system prompt from the next message on"


def rename(chat_session: ChatSession, title: str) -> str:
    """Give the conversation a title and return the line to show."""
    title = clean_line(" ".join(title.split()), MOST_TITLE_CHARS)
    if chat_session.journal.rename(title):
        return f"title: {title}"
    return "the conversation gets a title when it has begun: nothing is saved yet"


def export(chat_session: ChatSession, argument: str) -> str:
    """Save the conversation as a file and return the line to show."""
    return save_as(
        argument,
        chat_session.conversation,
        chat_session.model.title if chat_session.model is not None else "",
        chat_session.journal.title,
        chat_session.journal.marks,
    )


@record
class PersonaChoice:
    """Result of ``/persona``."""

    line: str
    """Line to show: the parameters of a chosen persona, else the result."""
    persona: Persona | None = None
    """Persona of the conversation that begins; None if none begins."""

    @property
    def sampling(self) -> Mapping[str, float] | None:
        """Parameters of the conversation that begins; None if the persona has none."""
        if self.persona is None:
            return None
        return self.persona.parameters or None


def choose_among_personas(chat_session: ChatSession, argument: str) -> PersonaChoice:
    """List the personas, save the current choices as one, or use one with its parameters."""
    (word, _, name) = argument.partition(" ")
    if not argument:
        return PersonaChoice(_listed_personas(chat_session.conversation.options.persona))
    if word.lower() == "save" and name.strip():
        persona = Persona(
            chat_session.conversation.system or "", dict(chat_session.request_options.sampling)
        )
        return PersonaChoice(save_persona(name.strip(), persona))
    persona = checked_persona(argument)
    return PersonaChoice(describe_sampling(persona.parameters), persona)


def _listed_personas(name: str) -> str:
    active = ""
    if name:
        active = f"this conversation began with persona {name}; "
    names = ", ".join(persona_names())
    return (
        f"{active}personas: {names} (/persona NAME uses one, /persona save NAME saves yours, "
        "/system keep remembers it for this model)"
    )


def choose_tools(engine_thread: EngineThread, argument: str) -> str:
    """List the tool servers, or turn them on or off."""
    if engine_thread.tools is not None:
        return engine_thread.tools.run_command(argument)
    return HOW_TO


def context_text(engine_thread: EngineThread, chat_session: ChatSession) -> str:
    """Return what fills the context, a line for each part. Raises Refusal: no model is open."""
    status = engine_thread.status
    if not status.n_ctx:
        raise Refusal(NO_MODEL)
    return describe_context(chat_session.conversation, status.context_used, status.n_ctx)


def is_compact_undo(argument: str) -> bool:
    """Return whether ``/compact`` removes the last summary. Raises Refusal: an unknown word."""
    word = argument.strip().lower()
    if word not in ("", UNDO):
        raise Refusal(USAGE_OF_COMPACT)
    return word == UNDO


def is_compact_show(argument: str) -> bool:
    """Return whether ``/compact`` shows the summary."""
    return argument.strip().lower() == SHOW


def summary_shown(conversation: Conversation) -> str:
    """Return the summary that the model reads. Raises Refusal: there is none."""
    summary = conversation.summary
    if summary is None:
        raise Refusal("nothing is summarized in this conversation: /compact does it")
    heading = f"Summary of the first {summary.n_messages} messages, as the model reads it:"
    return f"{heading}\n\n{summary.text}"


def summary_removed_line(conversation: Conversation) -> str:
    """Return a line about a summary that was removed."""
    if conversation.summary is not None:
        n_messages = conversation.summary.n_messages
        return f"That summary is removed; the one of the first {n_messages} messages holds again."
    return "The summary is removed: the model reads the messages themselves again."


def pin(chat_session: ChatSession) -> str:
    """Pin the conversation or unpin it, and return the line to show."""
    marks = chat_session.journal.marks
    marks = replace(marks, is_pinned=not marks.is_pinned)
    _change_marks(chat_session, marks)
    if marks.is_pinned:
        return "pinned: this conversation comes first in the list"
    return "no longer pinned"


def tag(chat_session: ChatSession, argument: str) -> str:
    """Show the tags of the conversation, or add or remove one, and return the line to show."""
    marks = chat_session.journal.marks
    if argument:
        marks = with_changed_tag(marks, argument)
        _change_marks(chat_session, marks)
    if not marks.tags:
        return "no tags (/tag NAME adds one)"
    return f"tags: {tags_text(marks.tags)}"


def with_changed_tag(marks: Marks, typed: str) -> Marks:
    """Return marks with a typed tag, or without it if a minus comes first.

    Raises Refusal: it is not a tag.
    """
    name = clean_tag(typed)
    if not name:
        raise Refusal("a tag is a word of letters or digits, such as work")
    if typed.lstrip().startswith("-"):
        return marks.without_tag(name)
    return marks.with_tag(name)


def _change_marks(chat_session: ChatSession, marks: Marks) -> None:
    if chat_session.journal.is_private:
        raise Refusal("a private conversation is not saved, so it is in no list")
    if not chat_session.journal.change_marks(marks):
        raise Refusal("nothing is saved yet: pins and tags need a first message")


def requested_threads(
    engine_thread: EngineThread, chat_session: ChatSession, argument: str, advice: str
) -> ThreadsInUse | str:
    """Return the threads that ``/threads`` requests, or a line on those in use.

    Args:
        advice: what finds the best threads, for the line.
    """
    in_use = engine_thread.state.threads
    if chat_session.model is not None and chat_session.model.server:
        raise Refusal(f"{chat_session.model.server} computes, and not threads of this machine")
    if in_use is None:
        raise Refusal(NO_MODEL)
    if not argument:
        return f"{describe_in_use(in_use)}. {USAGE}, 1 to {in_use.most}; {advice}."
    return replace(in_use, now=parse_threads(argument, in_use), origin=ChoiceOrigin.HAND)


def requested_adapters(chat_session: ChatSession, argument: str) -> tuple[str, ...] | str:
    """Return the adapters that ``/lora`` requests, or a line on those in use."""
    if chat_session.model is None:
        raise Refusal(NO_MODEL)
    if not argument:
        line = described(chat_session.conversation.options.adapters) or "no adapter"
        return f"{line}. {USAGE_OF_LORA}"
    if argument.lower() == OFF:
        return ()
    return adapters_named(split_wanted(argument))


def choose_thinking(chat_session: ChatSession, argument: str) -> str:
    """Change how much the model thinks, remember it for the model, and return the line to show."""
    try:
        mode = ThinkingMode.parse(argument)
        model = chat_session.model
    except ValueError:
        raise Refusal(
            f"'{clean_line(argument, 20)}' is not a way to think ({THINK_USAGE})"
        ) from None
    if model is None:
        raise Refusal(NO_MODEL)
    # The mode is also the usual one of this model now.
    chat_session.model = replace(model, thinking=str(mode))
    chat_session.change_options(thinking=str(mode))
    trouble = state.remember_thinking(model_key(model.path), str(mode))
    if model.server and mode.budget_tokens is not None:
        trouble = "a server is only told to think, not how long"
    return (
        f"{describe_thinking(str(mode))} from the next message on; "
        f"{trouble or 'remembered for this model'}"
    )


def choose_sampling(engine_thread: EngineThread, chat_session: ChatSession, argument: str) -> str:
    """Carry out ``/set`` and return the line to show.

    Raises Refusal: there is no such parameter, or the value is not allowed.
    """
    words = argument.replace("=", " ").split()
    sampling = chat_session.conversation.options.sampling
    if not words:
        line = describe_sampling(sampling) or "Nothing is changed for this conversation"
        return f"{line}. {USAGE_OF_SET}"
    if words == [RESET]:
        chat_session.change_options(sampling={})
        return "Sampling is reset to the settings and the model from the next message on"
    if words == [KEEP]:
        return _remember_sampling(chat_session)

    name = words[0].lower().replace("-", "_")
    check_name(name)
    if len(words) != 2:
        number, source = sampling_in_effect(engine_thread, chat_session, name)
        raise Refusal(f"{name} is {number:g} ({source.value}); /set {name} VALUE changes it")
    number = parse_sampling(name, words[1])
    chat_session.change_options(sampling={**sampling, name: number})
    return f"{name} {number:g} from the next message on (/set keep remembers it)"


def sampling_in_effect(
    engine_thread: EngineThread, chat_session: ChatSession, name: str
) -> tuple[float, Source]:
    """Return the value of a sampling parameter and its source."""
    mode = ThinkingMode.parse(chat_session.request_options.thinking or AUTO)
    advice = engine_thread.state.advise(mode)
    return sampling_and_source(
        name, chat_session.conversation.options.sampling, engine_thread.settings, advice
    )


def _remember_sampling(chat_session: ChatSession) -> str:
    if chat_session.model is None:
        raise Refusal("no model is loaded whose choice could be kept")
    sampling = chat_session.conversation.options.sampling
    trouble = state.remember_generation(model_key(chat_session.model.path), sampling)
    line = describe_sampling(sampling) or "nothing of its own"
    return trouble or f"{line}: remembered for this model"


def is_form_file(argument: str) -> bool:
    """Return whether the argument of ``/schema`` names a file."""
    return argument.strip().lower() not in ("", OFF)


def show_or_remove_form(chat_session: ChatSession, argument: str) -> str:
    """Carry out ``/schema`` without a file and return the line to show."""
    if not argument.strip():
        line = describe_form(chat_session.conversation.options) or "answers in any form"
        return f"{line}. {_USAGE_OF_SCHEMA}"
    chat_session.change_options(form=None)
    return "answers in any form, from the next message on"


def form_line(form: AnswerForm, unenforced: Sequence[str]) -> str:
    """Return a line about the new form of replies.

    Args:
        unenforced: parts of the form that are not enforced.
    """
    line = (
        f"answers as {form.name} from the next message on, without thinking (/schema off ends it)"
    )
    if unenforced:
        line += f"; not enforced: {', '.join(unenforced)}"
    return line

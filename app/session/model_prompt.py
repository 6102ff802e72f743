"""System prompt or persona with which new conversations begin, saved for a model by ``/system
keep``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace

from app.backend.engine_thread import EngineThread
from app.conversations.conversation import Conversation
from app.conversations.store import model_key
from app.program import state
from app.program.personas import Persona, load_persona
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.program.settings import Settings, Source
from app.session.reply_options import check_sampling, remembered_sampling
from app.text.record import record


@record
class StartingPrompt:
    """Beginning of a conversation."""

    system: str | None
    """System prompt; None for none."""
    persona: str = ""
    """Name of the persona that the system prompt is from; empty if it is from none."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters of the persona, and those saved for the model."""

    def begins(self, conversation: Conversation) -> bool:
        """Return whether a conversation has this system prompt and persona."""
        return (self.system, self.persona) == (conversation.system, conversation.options.persona)


def checked_persona(name: str) -> Persona:
    """Return a persona with sampling parameters that are allowed.

    Raises Refusal: it cannot be used.
    """
    persona = load_persona(name)
    parameters = {key: check_sampling(key, value) for key, value in persona.parameters.items()}
    return replace(persona, parameters=parameters)


def saved_prompt(model_path: ModelPlace | str, settings: Settings) -> StartingPrompt | None:
    """Return what ``/system keep`` saved for a model; None if there is nothing, or if the command
    line has a system prompt.

    Raises Refusal: the saved persona cannot be used.
    """
    if settings.sources.get("system_prompt") is Source.COMMAND_LINE:
        return None
    prompt = state.load_state()[0].prompts.get(model_key(model_path))
    if prompt is None:
        return None
    if not prompt.persona:
        return StartingPrompt(prompt.system)
    persona = checked_persona(prompt.persona)
    sampling = {
        name: value
        for name, value in persona.parameters.items()
        if settings.sources.get(f"sampling.{name}") is not Source.COMMAND_LINE
    }
    if sampling:
        sampling |= remembered_sampling(model_path, settings)
    return StartingPrompt(persona.system or None, prompt.persona, sampling)


def usable_prompt(model_path: ModelPlace | str, settings: Settings) -> StartingPrompt | None:
    """Return what ``/system keep`` saved for a model; None if nothing of it can be used."""
    with suppress(Refusal):
        return saved_prompt(model_path, settings)
    return None


def prompt_of(conversation: Conversation) -> StartingPrompt:
    """Return the system prompt and persona of a conversation."""
    return StartingPrompt(conversation.system, conversation.options.persona)


class StartingPrompts:
    """Choice of the prompt with which a conversation begins.

    Paths of models are empty if no model is open.

    Args:
        usual: prompt of models for which none is saved.
    """

    def __init__(self, engine_thread: EngineThread, usual: StartingPrompt) -> None:
        self._engine_thread = engine_thread
        self._usual = usual

    def next_after(self, present: Conversation, model_path: str) -> StartingPrompt:
        """Return the prompt of a new conversation: the one saved for the model, or that of the
        present conversation."""
        return self._saved_for(model_path) or prompt_of(present)

    def with_model(
        self, model_path: str, previous_path: str, present: Conversation, begins_new: bool
    ) -> StartingPrompt:
        """Return the prompt of a conversation with a model that was opened.

        A conversation that has begun keeps its prompt, and so does one whose prompt the user chose.

        Args:
            previous_path: path of the model that was open before.
            begins_new: whether a new conversation begins.
        """
        if not (begins_new or present.is_empty):
            return prompt_of(present)
        saved = self._saved_for(model_path)
        previous = self._saved_for(previous_path)
        is_of_previous = previous is not None and previous.begins(present)
        if saved is not None and (begins_new or is_of_previous or self._usual.begins(present)):
            return saved
        if is_of_previous:
            return self._usual
        return prompt_of(present)

    def _saved_for(self, model_path: str) -> StartingPrompt | None:
        if not model_path or not self._engine_thread.recalls_choices:
            return None
        return usable_prompt(model_path, self._engine_thread.settings)

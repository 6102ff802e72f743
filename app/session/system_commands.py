"""``/system``: shows the system prompt, and remembers it for the model or forgets it."""

from __future__ import annotations

from app.backend.engine_thread import EngineThread
from app.conversations.store import model_key
from app.program import state
from app.program.refusals import Refusal
from app.program.settings import Source
from app.program.state import ModelPrompt
from app.session.chat_session import ChatSession
from app.session.commands import NO_MODEL
from app.session.model_prompt import saved_prompt, usable_prompt
from app.session.reply_options import describe_persona
from app.text.clean_text import clean_line

_SHOWN_CHARS = 120
"""Limit on the system prompt in the line about the beginning of a conversation."""


def reply_about_system(
    engine_thread: EngineThread, chat_session: ChatSession, argument: str
) -> str:
    """Carry out ``/system`` without a new system prompt, and return the line to show; "" if the
    argument is a system prompt.

    Raises Refusal: there is nothing to remember or to forget.
    """
    match argument.lower():
        case "":
            return _describe_system(engine_thread, chat_session)
        case "keep":
            return _remember_prompt(chat_session)
        case "forget":
            return _forget_prompt(chat_session)
    return ""


def starting_line(engine_thread: EngineThread, chat_session: ChatSession) -> str:
    """Return a line about the system prompt or persona that is remembered for the model and begins
    this conversation, or the reason why it cannot; "" if there is none."""
    conversation = chat_session.conversation
    if chat_session.model is None or not conversation.is_empty:
        return ""
    try:
        prompt = saved_prompt(chat_session.model.path, engine_thread.settings)
    except Refusal as refusal:
        return f"remembered for this model, but {refusal} (/system forget)"
    if prompt is None or not prompt.begins(conversation):
        return ""
    name = describe_persona(conversation.options) or "system prompt"
    text = clean_line(prompt.system or "", _SHOWN_CHARS)
    return f"{name}, remembered for this model: {text} (/system forget)"


def _describe_system(engine_thread: EngineThread, chat_session: ChatSession) -> str:
    conversation = chat_session.conversation
    if not conversation.system:
        return "There is no system prompt; /system TEXT sets one."
    settings = engine_thread.settings
    source = settings.sources.get("system_prompt", Source.DEFAULT)
    prompt = None
    if chat_session.model is not None:
        prompt = usable_prompt(chat_session.model.path, settings)
    origin = ""
    if prompt is not None and prompt.begins(conversation):
        origin = "remembered for this model"
    elif conversation.system == settings.system_prompt and source is not Source.DEFAULT:
        origin = source.value
    origins = ", ".join(filter(None, (describe_persona(conversation.options), origin)))
    if origins:
        origins = f" ({origins})"
    return f"system prompt{origins}: {conversation.system}"


def _remember_prompt(chat_session: ChatSession) -> str:
    if chat_session.model is None:
        raise Refusal(NO_MODEL)
    conversation = chat_session.conversation
    system = conversation.system or ""
    persona = conversation.options.persona
    if persona:
        prompt = ModelPrompt(persona=persona)
    elif not system:
        raise Refusal("there is no system prompt to remember; /system TEXT sets one")
    elif len(system) > state.MAX_PROMPT_CHARS:
        raise Refusal(
            f"a system prompt over {state.MAX_PROMPT_CHARS} characters is not remembered; "
            "/persona save NAME makes it a persona, which is"
        )
    else:
        prompt = ModelPrompt(system)
    trouble = state.remember_prompt(model_key(chat_session.model.path), prompt)
    name = describe_persona(conversation.options) or "system prompt"
    return trouble or f"{name}: remembered for new conversations with this model (/system forget)"


def _forget_prompt(chat_session: ChatSession) -> str:
    if chat_session.model is None:
        raise Refusal(NO_MODEL)
    key = model_key(chat_session.model.path)
    if key not in state.load_state()[0].prompts:
        raise Refusal("no system prompt is remembered for this model; /system keep does that")
    trouble = state.remember_prompt(key, None)
    return trouble or "forgotten for this model; /system - clears the one of this conversation, too"

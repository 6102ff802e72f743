"""What the settings say of the chat: how models are opened, replies asked for, and conversations kept."""

from __future__ import annotations

from functools import partial

from app import engine_access, paths
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.engine_options import ChatOptions
from app.low_power import is_on_battery
from app.performance.history import ReplyHistory
from app.screens.conversation_flow import AtHand
from app.settings import Settings
from app.start import remember_opened
from app.tuning_conditions import watch_machine


def chat_options(settings: Settings) -> ChatOptions:
    """Return how the settings say to open models and ask for replies."""
    return ChatOptions(
        open_model=partial(engine_access.open_model, settings),
        sampling=partial(engine_access.make_sampling, settings),
        check_model=engine_access.check_model,
        context_size=settings.context_size or None,
        kv_type=settings.kv_type,
        max_tokens=settings.sampling.max_tokens,
        on_opened=remember_opened,
        open_history=lambda: ReplyHistory(paths.speeds_file()),
        examine=partial(engine_access.examine_machine, settings),
        recall_tuned=engine_access.recall_tuned,
        remember_tuned=engine_access.remember_tuned,
        kernels_version=engine_access.kernels_version,
        watch_conditions=watch_machine,
        state_files=partial(engine_access.state_files, settings, partial(may_read_ahead, settings)),
        may_pin=settings.pin_threads == "auto",
    )


def conversations_at_hand(settings: Settings) -> AtHand:
    """Return the saved conversations, as far as the settings want any."""
    if settings.save_conversations == "off":
        return AtHand()
    store = Store()
    resumes, quota_bytes = settings.resume == "last", settings.kv_states_quota_bytes
    return AtHand(Journal(store), store, resumes, quota_bytes, paths.prefixes_dir())


def may_read_ahead(settings: Settings) -> bool:
    """Whether the engine may work before anything is sent."""
    wanted = settings.prefill_while_typing
    return wanted == "on" or (wanted == "auto" and not is_on_battery())

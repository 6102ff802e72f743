"""``jalopy read``: reads documents ahead and keeps the state, so that a later chat about them
begins at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.backend.reply import Clock
from app.cli.interrupts import interrupt_stops
from app.cli.output import ProgressLine, follow_opening
from app.cli.reading import read_with_progress
from app.conversations.journal import open_storage
from app.conversations.locks import StoreError
from app.conversations.store import MOST_TITLE_CHARS, LoadedConversation, Store
from app.documents.passages import announcement, fit, n_tokens, whole
from app.documents.read import Document
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.session.events import ConversationReread, Event
from app.session.headless import HeadlessChat
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.chat.draft import Draft
from app.tui.chat_options import shell_options


def read(
    settings: Settings, model: str, files: Sequence[str], clock: Clock = time.monotonic
) -> int:
    """Read documents; Ctrl-C keeps what is read by then.

    Raises:
        EngineError: the model cannot be used.
        Refusal: there is nothing to read, or it does not fit.
    """
    reading = read_with_progress(files)
    for trouble in reading.troubles:
        say(f"jalopy read: {trouble}")
    if reading.is_stopped:
        return exit_codes.INTERRUPTED
    if not reading.documents:
        raise Refusal("jalopy read: there is nothing to read (name files or folders)")
    if not settings.kv_states_quota_bytes:
        raise Refusal(
            'jalopy read: nothing would be kept (set keep_kv_states = "on" in your settings)'
        )
    progress = ProgressLine()
    chosen = shell_options(settings, keeps_states=True)
    store = Store()
    storage = open_storage(settings, is_named=True)
    talk = HeadlessChat(chosen, storage, settings.system_prompt, clock, progress.show_status)
    message = Draft().with_files(whole(reading.documents))
    before = _begun_before(store, message.text.strip(), talk.chat_session.conversation.system)
    try:
        code = _read(talk, Path(model), reading.documents, message, before, progress)
    except BaseException as error:
        if before is None:
            begun_id = talk.chat_session.journal.id
        else:
            begun_id = ""
        talk.close(is_hurried=not isinstance(error, Exception))
        if begun_id and isinstance(error, Refusal):  # no one can ask about what was not read
            with suppress(StoreError):
                store.delete(begun_id)
        raise
    progress.clear()
    if trouble := talk.close() or talk.engine_thread.state.state_trouble:
        say(f"jalopy read: not kept: {trouble}")
        return exit_codes.IO_ERROR
    return code


def _begun_before(store: Store, text: str, system: str | None) -> LoadedConversation | None:
    """Open the conversation that was begun for the same documents, if nothing was asked in it."""
    for entry in (one for one in store.entries() if one.n_messages == 1):
        with suppress(StoreError):
            said = store.read(entry.id).conversation
            if said.awaits_reply and said.messages[0].text == text and said.system == system:
                opened = store.open(entry.id)
                if opened.open_conversation is not None:  # else another program has it open
                    return opened
    return None


def _read(
    talk: HeadlessChat,
    model: Path,
    documents: Sequence[Document],
    message: Draft,
    before: LoadedConversation | None,
    progress: ProgressLine,
) -> int:
    opened = follow_opening(talk, talk.open(model, before), progress, "jalopy read")
    if not fit(documents, opened.n_ctx):
        about = (
            f"about {figures.count(n_tokens(documents))} tokens, the context holds "
            f"{figures.count(opened.n_ctx)}"
        )
        raise Refusal(
            f"jalopy read: {about}; of so much a chat reads passages only "
            "(read less, or try a larger --ctx)"
        )
    say(announcement(documents, opened.n_ctx, talk.engine_thread.status.usual_prefill_tps))
    if before is not None:
        say(
            f"jalopy read: conversation {int(before.id)} was begun with the same files, "
            "and is used again"
        )
    title = clean_line(f"read: {', '.join(one.name for one in documents)}", MOST_TITLE_CHARS)
    done: list[Event] = []
    with interrupt_stops(talk.stop):
        done += talk.read(message.text.strip(), message.shown.strip(), title)
    progress.clear()
    return _tell(talk, next(event for event in done if isinstance(event, ConversationReread)))


def _tell(talk: HeadlessChat, reread: ConversationReread) -> int:
    if reread.trouble:
        if talk.chat_session.model is not None:
            n_ctx = talk.chat_session.model.n_ctx
        else:
            n_ctx = 0
        sizes = (
            f"{figures.count(reread.total_tokens)} tokens, the context holds {figures.count(n_ctx)}"
        )
        if reread.total_tokens:
            reason = sizes
        else:
            reason = reread.trouble
        raise Refusal(
            f"jalopy read: {reason} (read less, or try a larger --ctx)", exit_codes.BAD_DATA
        )
    if reread.restored_tokens:
        earlier = f" ({figures.count(reread.restored_tokens)} were read before)"
    else:
        earlier = ""
    tokens = f"{figures.count(reread.read_tokens)} of {figures.count(reread.total_tokens)} tokens"
    number = int(talk.chat_session.journal.id or 0)
    say(
        f"read {tokens} in {figures.seconds(reread.read_s)}{earlier}: conversation {number}, "
        "or /read in a new one"
    )
    if reread.read_tokens >= reread.total_tokens:
        return exit_codes.OK
    return exit_codes.INTERRUPTED

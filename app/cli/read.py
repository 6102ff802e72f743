"""``jalopy read``: read documents in advance, so that a later chat about them starts at once."""

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
    """Read documents and save the KV cache; Ctrl-C saves what was read so far.

    Raises:
        EngineError: the model cannot be used.
        Refusal: there is no document, or the documents do not fit the context.
    """
    reading = read_with_progress(files)
    for trouble in reading.troubles:
        say(f"jalopy read: {trouble}")
    if reading.is_stopped:
        return exit_codes.INTERRUPTED
    if not reading.documents:
        raise Refusal("jalopy read: there is no document to read (name files or folders)")
    if not settings.kv_states_quota_bytes:
        raise Refusal(
            'jalopy read: nothing would be saved (set keep_kv_states = "on" in your settings)'
        )
    progress = ProgressLine()
    options = shell_options(settings, keeps_states=True)
    store = Store()
    storage = open_storage(settings, is_named=True)
    headless = HeadlessChat(options, storage, settings.system_prompt, clock, progress.show_status)
    message = Draft().with_files(whole(reading.documents))
    earlier = _open_earlier(store, message.text.strip(), headless.chat_session.conversation.system)
    try:
        code = _read(headless, Path(model), reading.documents, message, earlier, progress)
    except BaseException as error:
        new_id = ""
        if earlier is None:
            new_id = headless.chat_session.journal.id
        headless.close(is_hurried=not isinstance(error, Exception))
        if new_id and isinstance(
            error, Refusal
        ):  # nothing was read, so the conversation is useless
            with suppress(StoreError):
                store.delete(new_id)
        raise
    progress.clear()
    if trouble := headless.close() or headless.engine_thread.state.state_trouble:
        say(f"jalopy read: not saved: {trouble}")
        return exit_codes.IO_ERROR
    return code


def _open_earlier(store: Store, text: str, system: str | None) -> LoadedConversation | None:
    """Open a conversation that holds the same documents and no question; None if there is none."""
    for entry in store.entries():
        if entry.n_messages != 1:
            continue
        with suppress(StoreError):
            conversation = store.read(entry.id).conversation
            has_same_text = conversation.awaits_reply and conversation.messages[0].text == text
            if has_same_text and conversation.system == system:
                loaded = store.open(entry.id)
                if loaded.open_conversation is not None:  # otherwise another program has it open
                    return loaded
    return None


def _read(
    headless: HeadlessChat,
    model: Path,
    documents: Sequence[Document],
    message: Draft,
    earlier: LoadedConversation | None,
    progress: ProgressLine,
) -> int:
    loaded_model = follow_opening(headless, headless.open(model, earlier), progress, "jalopy read")
    n_ctx = loaded_model.n_ctx
    if not fit(documents, n_ctx):
        raise Refusal(
            f"jalopy read: the documents have about {figures.count(n_tokens(documents))} tokens, "
            f"but the context holds {figures.count(n_ctx)}; a chat would use passages of them only "
            "(read less, or try a larger --ctx)"
        )
    say(announcement(documents, n_ctx, headless.engine_thread.status.usual_prefill_tps))
    if earlier is not None:
        say(f"jalopy read: continuing conversation {int(earlier.id)}, which has the same files")

    names = ", ".join(document.name for document in documents)
    title = clean_line(f"read: {names}", MOST_TITLE_CHARS)
    events: list[Event] = []
    with interrupt_stops(headless.stop):
        events += headless.read(message.text.strip(), message.folded_text.strip(), title)
    progress.clear()
    reread = next(event for event in events if isinstance(event, ConversationReread))
    return _say_result(headless, reread, n_ctx)


def _say_result(headless: HeadlessChat, reread: ConversationReread, n_ctx: int) -> int:
    """Print how much was read and return the exit code. Raises Refusal: reading failed."""
    total = figures.count(reread.total_tokens)
    if reread.trouble:
        reason = reread.trouble
        if reread.total_tokens:
            reason = f"{total} tokens, but the context holds {figures.count(n_ctx)}"
        raise Refusal(
            f"jalopy read: {reason} (read less, or try a larger --ctx)", exit_codes.BAD_DATA
        )
    cached = ""
    if reread.restored_tokens:
        cached = f" ({figures.count(reread.restored_tokens)} were cached)"
    say(
        f"Read {figures.count(reread.read_tokens)} of {total} tokens in "
        f"{figures.seconds(reread.read_s)}{cached}. To ask about them, open conversation "
        f"{int(headless.chat_session.journal.id or 0)} or /read the same files in a new one"
    )
    if reread.read_tokens >= reread.total_tokens:
        return exit_codes.OK
    return exit_codes.INTERRUPTED

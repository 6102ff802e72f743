"""Files that go with the next message: read in the background, and chosen to fit the context."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Sequence
from functools import partial

from app.conversations.conversation import Conversation
from app.conversations.document_list import save_long_documents
from app.documents.passages import FileText, announcement, fit, for_message, n_tokens
from app.documents.read import Document, ReadDocuments, ReadingProgress, read_documents
from app.program.background import in_background
from app.session.events import DraftCounted, GenerationFinished
from app.text import figures
from app.tui.chat.core import ChatCore
from app.tui.chat.draft import Draft, files_end
from app.tui.chat.draft_cost import PromptEstimator
from app.tui.chat.draft_pictures import DraftPictures
from app.tui.screens import make_screen
from app.tui.widgets.message_view import Note

_PROGRESS_PERIOD_S = 0.25
_ANNOUNCED_TOKENS = 500
"""Smaller files get no line of their own; the prompt's edge shows their cost."""


class _FileReading:
    """Progress of files that are being read in the background, and whether to stop."""

    def __init__(self) -> None:
        self.progress: ReadingProgress | None = None
        self.is_stopped = False

    def follow(self, progress: ReadingProgress) -> bool:
        """Record the progress; return False to stop reading."""
        self.progress = progress
        return not self.is_stopped


class Attachments:
    """The files of the next message.

    Files that fit the context are put into the prompt. Each message takes passages of larger
    documents along.
    """

    def __init__(self, core: ChatCore, estimator: PromptEstimator, pictures: DraftPictures) -> None:
        self._core = core
        self._estimator = estimator
        self._pictures = pictures
        self._readings: tuple[_FileReading, ...] = ()
        """Files that are being read now."""
        self._for_sent_message: Sequence[FileText] = ()
        """Files that were read after the next message was sent; they go with it."""
        self._large_documents: tuple[Document, ...] = ()
        """Documents that are larger than the context."""
        self._passages_in: Conversation | None = None
        """The conversation that has passages of them; None before the first passage is sent."""
        self._uploads_allowed_in: Conversation | None = None
        """The conversation whose files may go to a server."""
        self._announcement: Note | None = None
        """The line about files that the next message contains whole."""
        self._announced: tuple[Document, ...] = ()
        self._estimated_text = ""
        """Text of the files in the prompt, until the engine has counted its tokens."""

    # ---- files of a command, or of the list of documents

    async def read(self, names: Sequence[str], has_sent: bool) -> None:
        """Read files, folders and patterns, and attach them.

        Args:
            has_sent: whether the next message was sent already.
        """
        reading = await self._read_files(names)
        documents = self._announce(reading)
        if reading.documents:
            self._attach(documents, has_sent)

    def attach_picture(self, picture: Document, has_sent: bool) -> None:
        """Attach a picture that is read already."""
        reading = ReadDocuments((picture,))
        documents = self._announce(reading)
        if documents:
            self._attach(documents, has_sent)

    def attach_document(self, document: Document, has_sent: bool) -> None:
        """Attach a document that was read before, in place of the large documents."""
        self._large_documents = ()
        documents = self._with_earlier(ReadDocuments((document,)))
        if not fit(documents, self._n_ctx):
            self._core.say(announcement(documents, self._n_ctx, 0.0))
        self._attach(documents, has_sent)

    def _attach(self, documents: tuple[Document, ...], has_sent: bool) -> None:
        if not fit(documents, self._n_ctx):
            self._large_documents = documents
            self._passages_in = None
            return
        self._large_documents = ()
        known_text = self._core.chat_session.conversation.user_text
        files = for_message(documents, "", self._n_ctx, known_text)
        self._say_repeated(files, documents)
        if has_sent:
            self._for_sent_message = files
        elif files:
            prompt = self._core.prompt
            had_files = bool(prompt.draft.documents)
            prompt.attach(files)
            if not had_files:
                self._estimated_text = prompt.draft.documents
                self._estimator.suppose(self._estimated_text, n_tokens(documents))

    # ---- reading in the background

    async def _read_files(self, names: Sequence[str], only_existing: bool = False) -> ReadDocuments:
        """Read files in the background, and show the progress."""
        reading = _FileReading()
        read = partial(read_documents, names, only_existing, reading.follow)
        self._readings = (*self._readings, reading)
        show_progress = partial(self._show_progress, reading)
        timer = self._core.screen.set_interval(_PROGRESS_PERIOD_S, show_progress)
        self._core.edge.is_reading_files = True
        try:
            documents: ReadDocuments = await wrap_future(in_background(read, "documents"))
        finally:
            timer.stop()
            self._readings = tuple(other for other in self._readings if other is not reading)
            self._core.edge.is_reading_files = bool(self._readings)
        return documents

    def _show_progress(self, reading: _FileReading) -> None:
        if reading.progress is None:
            return
        line = reading.progress.line
        key = self._core.keymap.first_key("chat.stop")
        if key:
            line += f" · {key} stops"
        self._core.edge.hint_for(2 * _PROGRESS_PERIOD_S, line)

    def stop_reading(self) -> bool:
        """Stop reading files, but keep their text so far; return False if none are being read."""
        for reading in self._readings:
            reading.is_stopped = True
        return bool(self._readings)

    # ---- files of a message that is being sent

    async def add_to(self, draft: Draft) -> Draft | None:
        """Return a message with the files that it names and those that were attached for it; None
        if it has pictures that the model cannot see or that cannot be read."""
        if draft.may_have_pictures and self._pictures.refuses(draft):
            return None
        complete: Draft | None = draft
        if draft.referred or self._earlier_documents:
            complete = await self._with_named_files(draft)
        files = self._for_sent_message
        if complete is not None and files:
            complete = self._remember(complete.with_files(files))
        if complete is not None:
            self._for_sent_message = ()
        return complete

    async def _with_named_files(self, draft: Draft) -> Draft | None:
        """Read the files that a message names, and choose the passages that answer it best; None if
        it names a picture that cannot be read."""
        core = self._core
        conversation = core.chat_session.conversation
        reading = await self._read_files(draft.referred, only_existing=True)
        documents = self._announce(reading)
        if self._pictures.lacks(draft, documents):
            return None
        self._large_documents = ()
        if not documents:
            return draft

        question = draft.folded_text[files_end(draft.folded_text, draft.folds) :]
        similarity = core.documents.embeddings.similarities
        choose = partial(
            for_message, documents, question, self._n_ctx, conversation.user_text, similarity
        )
        files = await wrap_future(in_background(choose, "documents"))

        store = core.storage.store
        if fit(documents, self._n_ctx):
            self._say_repeated(files, documents)
        else:
            if files and store is not None and not core.chat_session.journal.is_private:
                await wrap_future(
                    in_background(partial(save_long_documents, store, documents), "shelf")
                )
            self._large_documents = documents
            self._passages_in = conversation
        # Without its references: if the message is given back, its files are not read again.
        return self._remember(Draft(draft.folded_text, draft.folds).with_files(files))

    def _remember(self, draft: Draft) -> Draft:
        """Add a draft to the history, where the prompt finds it if the message is given back."""
        self._core.prompt.past.add(draft)
        return draft

    async def may_upload(self, draft: Draft) -> bool:
        """Return whether a message's files may go to a server; ask once for each conversation."""
        core = self._core
        conversation = core.chat_session.conversation
        server = core.chat_session.model.server if core.chat_session.model is not None else ""
        if not server or not draft.files_line or self._uploads_allowed_in is conversation:
            return True
        question = make_screen(
            "question",
            draft.files_line,
            server,
            core.keymap,
            core.engine_thread.now_s,
            kind="SendFilesScreen",
        )
        if await core.screen.app.push_screen_wait(question):
            self._uploads_allowed_in = conversation
            return True
        core.say(f"Not sent: {draft.files_line} stays on this computer")
        return False

    # ---- lines about files

    def _announce(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Say what was read; return it with the large documents that were attached before."""
        for trouble in reading.troubles:
            self._core.say(trouble, is_error=True)
        reading = self._pictures.seen(reading)
        self._announcement = None
        self._estimated_text = ""
        documents = self._with_earlier(reading)
        fits_whole = fit(documents, self._n_ctx)
        is_large = n_tokens(documents) >= _ANNOUNCED_TOKENS or not fits_whole
        if reading.documents and is_large:
            tps = self._estimator.prefill_tps or self._core.engine_thread.status.usual_prefill_tps
            line = self._core.say(announcement(documents, self._n_ctx, tps))
            self._announced = documents
            if fits_whole:
                self._announcement = line
        return documents

    def show_count(self, event: DraftCounted) -> None:
        """Correct the line about the files once the engine has counted their tokens."""
        if event.text == self._estimated_text:
            self._correct_announcement(f"{figures.count(event.tokens)} tokens")

    def show_prompt_size(self, event: GenerationFinished) -> None:
        """Correct the line about files that were sent before the engine had counted them."""
        known_text = self._core.chat_session.conversation.user_text
        turn_starts = self._core.engine_thread.status.turn_starts
        if self._announcement is None or not turn_starts:
            return
        if all(document.in_message.strip() in known_text for document in self._announced):
            prompt_tokens = event.figures.prompt_tokens + event.figures.reused_tokens
            n_tokens = figures.count(prompt_tokens - turn_starts[-1])
            self._correct_announcement(f"{n_tokens} tokens with the question")

    def _correct_announcement(self, size: str) -> None:
        if self._announcement is not None:
            names = self._announcement.text.rpartition(": about ")[0]
            self._announcement.say(f"{names}: {size}")
        self._announcement = None
        self._estimated_text = ""

    def _say_repeated(self, files: Sequence[FileText], documents: Sequence[Document]) -> None:
        """Say which documents the conversation contains already."""
        sent_names = {file.name for file in files}
        for document in documents:
            if document.name not in sent_names:
                self._core.say(
                    f"{document.name} is in the conversation already and is not sent again"
                )

    # ---- the context

    def _with_earlier(self, reading: ReadDocuments) -> tuple[Document, ...]:
        """Return documents with the earlier large ones, sized in tokens of the open model."""
        model = self._core.chat_session.model
        tokens_ratio = model.tokens_ratio if model is not None else 1.0
        return reading.with_earlier(self._earlier_documents, tokens_ratio, self._pictures.n_tokens)

    @property
    def _earlier_documents(self) -> tuple[Document, ...]:
        """The large documents; empty if their passages are in another conversation."""
        is_new = self._passages_in is None
        if is_new or self._passages_in is self._core.chat_session.conversation:
            return self._large_documents
        return ()

    @property
    def _n_ctx(self) -> int:
        model = self._core.chat_session.model
        return model.n_ctx if model is not None else 0

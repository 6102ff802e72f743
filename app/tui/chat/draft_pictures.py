"""Pictures of the next message: what they will cost, their preview, and the detail."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from textual.containers import Horizontal
from textual.widgets import Static

from app.backend.picture_costs import PictureCosts
from app.documents.clipboard_picture import read_picture
from app.documents.pictures import (
    PICTURES,
    REFERENCE_START,
    PictureReference,
    about_tokens,
    picture_text,
    references_in,
    size_of,
    with_detail,
)
from app.documents.read import Document, ReadDocuments, picture_path, pictures_named
from app.program.background import in_background
from app.program.refusals import Refusal
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.chat.core import ChatCore
from app.tui.chat.draft import Draft
from app.tui.widgets.message_view import Note
from app.tui.widgets.picture_preview import PicturePreview
from engine.errors import EngineError

DETAILS = "low", "usual", "high"
CLIPBOARD_NAME = "clipboard.png"
_COLUMNS = 16
_ROWS = 5
"""Size of the preview in characters."""
_LOW_SCREEN_ROWS = 20
"""Height of the screen below which there is no preview."""
_MOST_LINES = 4
_NAME_CHARS = 40


def seconds(wait_s: float) -> str:
    """Return an expected wait in words."""
    return "under 1 s" if wait_s < 1 else f"about {figures.whole_seconds(wait_s)}"


class DraftPictures:
    """The pictures of the next message.

    Args:
        prefill_tps: returns the tokens per second of the last prompts; None before the first.
    """

    def __init__(
        self,
        core: ChatCore,
        prefill_tps: Callable[[], float | None],
    ) -> None:
        self._core = core
        self._prefill_tps = prefill_tps
        self._detail = ""
        """Detail that was chosen since the start; "" for that of the settings."""
        self._named: tuple[PictureReference, ...] = ()
        """Pictures whose names are in the draft."""
        self._shown_lines = ""
        self._preview: PicturePreview | None = None
        self._text = Static(markup=False, id="picture-text")
        self.line = Horizontal(self._text, id="pictures")
        """The lines above the prompt."""
        self.line.display = False

    @property
    def detail(self) -> str:
        """Detail at which the pictures of the next message are read."""
        return self._detail or self._core.settings.pictures.detail

    # ---- following the draft

    async def read_named(self, names: Sequence[str]) -> None:
        """Read the pictures that the draft names, and show them."""
        references: tuple[PictureReference, ...] = ()
        if names:
            texts = await wrap_future(in_background(partial(pictures_named, names), "files"))
            references = tuple(reference for text in texts for reference in references_in(text))
        self._named = references
        self.show()

    def show(self) -> None:
        """Show the pictures of the draft, if they have changed."""
        pictures = [*_attached(self._core.prompt.draft), *self._named]
        costs = self._core.engine_thread.state.picture_costs
        self.line.display = bool(pictures)
        self._show_preview(pictures[-1:])
        lines = self._lines(pictures, costs) if pictures else ""
        if lines != self._shown_lines:
            self._shown_lines = lines
            self._text.update(lines)

    def encode_s(self) -> float:
        """Return the seconds in which the encoder reads the pictures of the draft."""
        costs = self._core.engine_thread.state.picture_costs
        if costs is None:
            return 0.0
        return sum(
            costs.of(picture.size, picture.detail or self.detail).encode_s
            for picture in _attached(self._core.prompt.draft)
        )

    def _show_preview(self, pictures: Sequence[PictureReference]) -> None:
        is_low = self._core.screen.app.size.height < _LOW_SCREEN_ROWS
        if is_low or self._core.settings.pictures.preview == "off":
            pictures = ()
        shown_digests = [self._preview.digest] if self._preview is not None else []
        if shown_digests == [picture.digest for picture in pictures]:
            return
        if self._preview is not None:
            self._preview.remove()
            self._preview = None
        for picture in pictures:
            self._preview = PicturePreview(picture, _COLUMNS, _ROWS)
            self.line.mount(self._preview, before=0)

    def _lines(self, pictures: Sequence[PictureReference], costs: PictureCosts | None) -> str:
        lines = []
        model = self._core.chat_session.model
        for picture in pictures[:_MOST_LINES]:
            name = clean_line(picture.name, _NAME_CHARS)
            lines.append(f"{name}: {picture.width} x {picture.height} pixels")
            if costs is not None:
                cost = self._cost(picture, costs, picture.detail or self.detail)
                lines.append(f"  read at {cost}")
            elif model is not None and not model.sees_pictures:
                lines.append(f"  {clean_line(model.name, _NAME_CHARS)} cannot see it")
        n_more = len(pictures) - _MOST_LINES
        if n_more > 0:
            lines.append(f"and {n_more} more")
        if costs is not None:
            lines.append(f"detail: {self.detail} (/detail low, usual or high)")
        return "\n".join(lines)

    def _cost(self, picture: PictureReference, costs: PictureCosts, detail: str) -> str:
        """Return size, tokens and wait of a picture, such as "640 x 352, 220 tokens, about 3 s"."""
        estimate = costs.of(picture.size, detail)
        wait_s = estimate.encode_s
        tps = self._prefill_tps()
        earlier = self._core.engine_thread.state.figures.earlier
        if tps is None and earlier is not None:
            tps = earlier.usual.prefill_tps
        if tps:
            wait_s += estimate.n_tokens / tps
        parts = ""
        if estimate.n_parts > 1:
            parts = f" in {estimate.n_parts} parts"
        return (
            f"{estimate.width} x {estimate.height}{parts}, "
            f"{figures.counted(estimate.n_tokens, 'token')}, {seconds(wait_s)}"
        )

    # ---- files that become pictures of the message

    def seen(self, reading: ReadDocuments) -> ReadDocuments:
        """Return what was read, with pictures at the chosen detail; without them if the model
        cannot see, and say so."""
        pictures = [document for document in reading.documents if document.is_picture]
        if not pictures:
            return reading
        if self._model_sees:
            documents = tuple(
                replace(document, text=with_detail(document.text, self.detail))
                if document.is_picture
                else document
                for document in reading.documents
            )
            return replace(reading, documents=documents)
        self._say_blind([document.name for document in pictures])
        others = tuple(document for document in reading.documents if not document.is_picture)
        return replace(reading, documents=others)

    def refuses(self, draft: Draft, consequence: str = "") -> bool:
        """Return whether a message has pictures that the model cannot see or that are lost, and say
        so.

        Args:
            consequence: what happens to the message, at the end of the line.
        """
        named_paths = [path for name in draft.referred if (path := picture_path(name))]
        names = [path.name for path in named_paths if path.is_file()]
        pictures = _attached(draft)
        names += [picture.name for picture in pictures]
        if names and not self._model_sees:
            self._say_blind(names, consequence)
            return True
        lost = [picture.name for picture in pictures if not PICTURES.has(picture.digest)]
        if lost:
            shown = clean_line(", ".join(lost), 200)
            line = f"{shown}: the picture is no longer kept (attach its file again){consequence}"
            self._core.say(line, is_error=True)
        return bool(lost)

    def check_draft(self) -> None:
        """Say if the model that was opened cannot see the pictures of the draft."""
        if not self._model_sees:
            self.refuses(self._core.prompt.draft)

    def lacks(self, draft: Draft, documents: Sequence[Document]) -> bool:
        """Return whether pictures that a message names are not among the documents that were read,
        and say so if their files do not exist."""
        read_paths = {document.path for document in documents}
        named_paths = [path for name in draft.referred if (path := picture_path(name))]
        missing = [path for path in named_paths if path not in read_paths]
        for path in missing:
            if not path.is_file():
                name = clean_line(path.name, 200)
                self._core.say(f"{name}: no such file (check the path)", is_error=True)
        return bool(missing)

    @property
    def _model_sees(self) -> bool:
        """Whether the open model sees; also if there is none yet."""
        model = self._core.chat_session.model
        return model is None or model.sees_pictures

    def _say_blind(self, names: Sequence[str], consequence: str = "") -> None:
        """Say that the model cannot see these pictures, and name one that can."""
        model = self._core.chat_session.model
        assert model is not None
        shown = clean_line(", ".join(names), 200)
        note = self._core.say(f"{shown}: {model.name} cannot see pictures", is_error=True)
        self._core.screen.run_worker(self._name_seeing(note, consequence), group="seeing")

    async def _name_seeing(self, note: Note, consequence: str) -> None:
        """Add to a line which model sees and fits this machine."""
        from app.models.library import seeing_models  # the first frame does not need it

        core = self._core
        get_key = core.keymap.first_key("app.get") or "/get"
        line = partial(seeing_models.seeing_model_line, core.settings, get_key, core.lists_models)
        advice = await wrap_future(in_background(line, "models"))
        note.say(f"{note.text}. {advice or 'See /help pictures'}{consequence}", "error")

    def n_tokens(self, text: str) -> int:
        """Return the tokens of a picture, given its reference."""
        size = size_of(text)
        assert size is not None
        costs = self._core.engine_thread.state.picture_costs
        if costs is None:
            return about_tokens(size)
        return costs.of(size, self.detail).n_tokens

    # ---- commands

    def action_detail(self, argument: str = "") -> None:
        """Show or choose the size at which the pictures of the next messages are read."""
        core = self._core
        detail = argument.strip().lower()
        if detail and detail not in DETAILS:
            core.say(
                f"detail {clean_line(detail, 40)}: must be {', '.join(DETAILS)}", is_error=True
            )
            return
        if not detail:
            core.say("\n".join(self._choices()))
            return
        self._detail = detail
        draft = core.prompt.draft
        if _attached(draft):
            folds = {chip: with_detail(text, detail) for chip, text in draft.folds.items()}
            core.prompt.show_draft(Draft(draft.folded_text, folds, draft.references))
        else:
            core.say(f"The next pictures are read at {detail} detail")
        self.show()

    def _choices(self) -> list[str]:
        """Return a line for each detail, with what the pictures of the draft would cost."""
        pictures = [*_attached(self._core.prompt.draft), *self._named]
        costs = self._core.engine_thread.state.picture_costs
        lines = [f"detail of pictures: {self.detail} (/detail low, usual or high)"]
        if costs is not None:
            lines += [
                f"  {detail}: {clean_line(picture.name, _NAME_CHARS)} at "
                f"{self._cost(picture, costs, detail)}"
                for picture in pictures[:_MOST_LINES]
                for detail in DETAILS
            ]
        return lines


def _attached(draft: Draft) -> list[PictureReference]:
    """Return the pictures in the chips and the text of a draft."""
    return [
        reference
        for text in (*draft.used_folds().values(), draft.folded_text)
        if REFERENCE_START in text
        for reference in references_in(text)
    ]


def clipboard_document() -> Document:
    """Return the picture in the clipboard as a document.

    Raises:
        Refusal: there is none, or it cannot be decoded.
    """
    content = read_picture()
    try:
        text = picture_text(content, CLIPBOARD_NAME)
    except EngineError as error:
        raise Refusal(str(error)) from None
    return Document(CLIPBOARD_NAME, Path(CLIPBOARD_NAME), text)

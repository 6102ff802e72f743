"""Pictures of a conversation as the model reads them: resized for its encoder, and named in the
texts of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.conversations.conversation import USER, PromptMessage
from app.conversations.pictures import MARK, Picture, with_attached, with_marks
from app.documents.pictures import references_in
from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.errors import EngineError
from engine.prompt.chat_prompt import picture_name

if TYPE_CHECKING:
    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.vision.rows import PreparedPicture


class PictureRefusal(Refusal):
    """A picture cannot be shown to the model."""


class PromptPictures:
    """Pictures of the messages of one conversation.

    Args:
        chat: conversation that gets the ids of the pictures.
        detail: setting ``pictures.detail``.
    """

    def __init__(self, model: Model, chat: ChatPrompt, detail: str) -> None:
        self._model = model
        self._chat = chat
        self._detail = detail
        self._prepared: dict[tuple[str, str], PreparedPicture] = {}
        """Resized pictures by the digests of their files and their details; the engine knows them
        as long as they are here."""

    def placed(self, message: PromptMessage) -> str:
        """Return the text of a message with the names of its pictures in place of their marks.

        Raises:
            PictureRefusal: the model reads no pictures, or one of these cannot be read.
        """
        text, attached = with_attached(message.text, message.pictures)
        texts = with_marks(text, len(attached)).split(MARK)
        names = [self._name_of(picture) for picture in attached]
        pairs = zip(names, texts[1:], strict=True)
        return texts[0] + "".join(name + text for name, text in pairs)

    def forget_others(self, messages: Sequence[PromptMessage]) -> None:
        """Forget pictures that are in none of these messages."""
        keys = {
            (picture.digest, picture.detail) for message in messages for picture in message.pictures
        }
        keys |= {
            (reference.digest, "")
            for message in messages
            if message.role == USER
            for reference in references_in(message.text)
        }
        for key in self._prepared.keys() - keys:
            del self._prepared[key]

    def _name_of(self, picture: Picture) -> str:
        pictures = self._model.pictures
        if pictures.encoder is None:
            raise PictureRefusal(
                f"{clean_line(self._model.name, 60)} cannot read pictures: its folder has no "
                f"mmproj file that fits (pictures.mmproj or --mmproj can name one)",
                exit_codes.BAD_DATA,
            )
        key = picture.digest, picture.detail
        prepared = self._prepared.get(key)
        if prepared is None:
            detail = picture.detail or self._detail
            try:
                prepared = pictures.encoder.prepare_bytes(picture.data, detail, picture.name)
            except EngineError as error:
                raise PictureRefusal(str(error), exit_codes.BAD_DATA) from None
            self._prepared[key] = prepared
        name = picture_name(prepared.digest)
        self._chat.pictures[name] = pictures.prompt_ids(prepared)
        return name

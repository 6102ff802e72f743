"""Pictures of a conversation as the model reads them: resized for its encoder, and named in the
texts of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.conversations.conversation import USER, PromptMessage
from app.conversations.pictures import MARK, Picture, with_attached, with_marks
from app.documents.pictures import PICTURES, references_in, without_pictures
from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from engine.errors import EngineError
from engine.prompt.chat_prompt import picture_name

if TYPE_CHECKING:
    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.vision.rows import PreparedPicture


_NAME_CHARS = 40


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
        self._files: dict[str, tuple[str, str]] = {}
        """Names and digests of their files by the digests of the resized pictures."""

    def placed(self, message: PromptMessage, is_last: bool = True) -> str:
        """Return the text of a message with the names of its pictures in place of their marks.

        Args:
            is_last: whether no message follows. Pictures of earlier ones are left out for a model
                that cannot see.

        Raises:
            PictureRefusal: the model reads no pictures, or one of these cannot be read.
        """
        is_blind = self._model.pictures.encoder is None
        if is_blind and not is_last and not message.pictures:
            return without_pictures(message.text)
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
            (reference.digest, reference.detail)
            for message in messages
            if message.role == USER
            for reference in references_in(message.text)
        }
        PICTURES.protect(digest for digest, _ in keys)
        for key in self._prepared.keys() - keys:
            self._files.pop(self._prepared.pop(key).digest, None)

    def file_of(self, digest: str) -> tuple[str, str]:
        """Return the name and the digest of a picture's file, by the digest of its pixels."""
        return self._files.get(digest, ("the picture", ""))

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
            name = clean_line(picture.name, _NAME_CHARS)
            self._files[prepared.digest] = name, picture.digest
        name = picture_name(prepared.digest)
        self._chat.pictures[name] = pictures.prompt_ids(prepared)
        return name

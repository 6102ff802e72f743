"""Pictures for servers: content parts with data URLs, no larger than a server needs them."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from app.conversations.conversation import USER, PromptMessage
from app.conversations.pictures import MARK, Picture, with_attached, with_marks
from app.program import exit_codes
from app.program.refusals import Refusal
from engine.errors import EngineError
from engine.vision import pixels

LONGEST_SIDES = {"low": 768, "usual": 1536, "high": 3072}
"""Limits on the pixels of a side, by the setting ``pictures.detail``."""
MAX_PICTURE_BYTES = 4 << 20
"""Limit on a file that is sent as it is."""
MAX_REQUEST_BYTES = 14 << 20
"""Limit on the files of all pictures of a request. In base64 they are a third larger; servers often
take bodies of 20 MB."""
_MAX_CACHED_BYTES = 32 << 20


class PictureParts:
    """Content parts of the pictures of a conversation. Each picture is resized once.

    Args:
        detail: Setting ``pictures.detail``.
    """

    def __init__(self, detail: str) -> None:
        self._detail = detail
        self._urls: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Data URLs by the digests of pictures and their details."""

    def contents_of(self, messages: Sequence[PromptMessage]) -> dict[int, list[dict[str, Any]]]:
        """Return the content of each message with pictures, by its index in the conversation.

        If all pictures together are too large, the oldest ones are replaced by their names.

        Raises:
            Refusal: A picture cannot be read.
        """
        contents: dict[int, list[dict[str, Any]]] = {}
        n_left = MAX_REQUEST_BYTES * 4 // 3
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.role != USER or not message.may_have_pictures:
                continue
            text, pictures = with_attached(message.text, message.pictures)
            urls: list[str] = []
            for picture in reversed(pictures):
                url = self._url_of(picture)
                n_left -= len(url)
                urls.insert(0, url if n_left >= 0 else "")
            contents[index] = _parts(text, pictures, urls, self._detail)
        return contents

    def _url_of(self, picture: Picture) -> str:
        """Return the data URL of a picture."""
        detail = picture.detail or self._detail
        key = picture.digest, detail
        url = self._urls.get(key)
        if url is None:
            try:
                content, media_type = pixels.fit_file(
                    picture.data, LONGEST_SIDES[detail], MAX_PICTURE_BYTES, picture.name
                )
            except EngineError as error:
                raise Refusal(str(error), exit_codes.BAD_DATA) from None
            url = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
            self._urls[key] = url
        self._urls.move_to_end(key)
        while len(self._urls) > 1 and sum(map(len, self._urls.values())) > _MAX_CACHED_BYTES:
            self._urls.popitem(last=False)
        return url


def has_pictures(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any message of a request has a picture."""
    return any(
        part.get("type") == "image_url"
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _parts(
    text: str, pictures: Sequence[Picture], urls: Sequence[str], detail: str
) -> list[dict[str, Any]]:
    """Return a text and its pictures as content parts, in order."""
    texts = with_marks(text, len(pictures)).split(MARK)
    parts: list[dict[str, Any]] = [{"type": "text", "text": texts[0]}]
    for picture, url, text_after in zip(pictures, urls, texts[1:], strict=True):
        if url:
            image = {"url": url}
            if (picture.detail or detail) != "usual":
                image["detail"] = picture.detail or detail
            parts.append({"type": "image_url", "image_url": image})
        else:
            note = f"[{picture.name}: this picture is no longer sent]"
            parts.append({"type": "text", "text": note})
        parts.append({"type": "text", "text": text_after})
    return [part for part in parts if part["type"] != "text" or part["text"]]

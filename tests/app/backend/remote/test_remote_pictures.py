"""Pictures for a server: data URLs of limited size, in their place in the message."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.backend.remote import picture_parts
from app.backend.remote.picture_parts import MAX_PICTURE_BYTES, PictureParts
from app.conversations.conversation import USER, PromptMessage
from app.conversations.pictures import MARK, Picture
from app.documents.pictures import read_picture_text
from app.session.events import GenerationFailed
from engine.errors import EngineError
from engine.vision.pixels import fit_file
from tests.app.backend.remote.raw_api import answering, http, stream
from tests.app.backend.remote.talking import talking, text_of
from tests.app.server.tiny_server import N_CTX, tiny_server
from tests.engine import families, tiny_gguf
from tests.engine.vision import tiny_mmproj


def image(width: int = 90, height: int = 60, seed: int = 0) -> Image.Image:
    return Image.fromarray(tiny_mmproj.picture(width, height, seed))


def saved(picture: Image.Image, file_type: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, file_type, **options)
    return file.getvalue()


def shown(content: bytes, name: str = "a.png") -> Picture:
    return Picture.of(content, name)


def content_of(part: dict[str, Any]) -> tuple[str, bytes]:
    media_type, _, data = part["image_url"]["url"].partition(";base64,")
    return media_type.removeprefix("data:"), base64.b64decode(data)


CAT = saved(image(seed=1))
DOG = saved(image(seed=2))


def test_pictures_are_sent_in_place_and_again_with_each_turn() -> None:
    with answering(stream("A cat."), stream("Black.")) as api, talking(api.url) as talk:
        assert text_of(list(talk.ask(f"This {MARK} or {MARK}?", (shown(CAT), shown(DOG)))))
        assert text_of(list(talk.ask("What colour?")))
    for body in api.bodies:
        parts = body["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url"] * 2 + ["text"]
        assert [part["text"] for part in parts[::2]] == ["This ", " or ", "?"]
        assert [content_of(part) for part in parts[1::2]] == [
            ("image/png", CAT),
            ("image/png", DOG),
        ]
        assert list(parts[1]["image_url"]) == ["url"]
    assert api.bodies[1]["messages"][2] == {"role": "user", "content": "What colour?"}


def test_an_attached_file_is_sent_as_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    text = f"cat.png:\n```\n{read_picture_text(path)}\n```\n\nWhat is it?"
    with answering(stream("A cat.")) as api, talking(api.url) as talk:
        assert text_of(list(talk.ask(text)))
    image_part, text_part = api.bodies[0]["messages"][0]["content"]
    assert content_of(image_part)[1] == CAT
    assert text_part == {"type": "text", "text": "What is it?"}


def test_a_server_that_refuses_pictures_gets_advice() -> None:
    refusal = b'{"error": {"message": "content must be a string"}}'
    for status, has_advice in (("400 Bad", True), ("500 Oops", True), ("429 Later", False)):
        answer = http(refusal, "application/json", status)
        with answering(answer) as api, talking(api.url) as talk:
            *_, last_event = talk.ask("What?", (shown(CAT),))
        assert isinstance(last_event, GenerationFailed)
        assert ("perhaps this model sees no pictures" in last_event.reason) == has_advice


@pytest.mark.parametrize(
    ("content", "media_type", "size"),
    [
        (saved(image(3000, 1500)), "image/jpeg", (1536, 768)),
        (saved(image(3000, 1500), "JPEG"), "image/jpeg", (1536, 768)),
        (saved(Image.new("RGB", (3000, 20))), "image/png", (1536, 10)),
        (saved(image(), "WEBP"), "image/png", (90, 60)),
        (saved(image(), "BMP"), "image/png", (90, 60)),
        (saved(image(), "GIF"), "image/png", (90, 60)),
    ],
)
def test_large_and_unusual_files_are_converted(
    content: bytes, media_type: str, size: tuple[int, int]
) -> None:
    result, result_type = fit_file(content, 1536, MAX_PICTURE_BYTES, "a")
    assert result_type == media_type
    with Image.open(io.BytesIO(result)) as picture:
        assert (picture.size, picture.mode) == (size, "RGB")


def test_photos_are_sent_upright() -> None:
    exif = Image.Exif()
    exif[274] = 6
    result, media_type = fit_file(saved(image(), "JPEG", exif=exif), 1536, MAX_PICTURE_BYTES, "a")
    assert media_type == "image/jpeg"
    with Image.open(io.BytesIO(result)) as picture:
        assert picture.size == (60, 90)
        assert 274 not in picture.getexif()


def test_details_set_the_size() -> None:
    content = saved(image(2000, 1000))
    widths = []
    for detail in ("low", "usual", "high"):
        message = PromptMessage(USER, MARK, pictures=(shown(content),))
        (part,) = PictureParts(detail).contents_of([message])[0]
        assert part["image_url"].get("detail", "usual") == detail
        with Image.open(io.BytesIO(content_of(part)[1])) as picture:
            widths.append(picture.width)
    assert widths == [768, 1536, 2000]


def test_the_oldest_pictures_are_left_out_of_large_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(picture_parts, "MAX_REQUEST_BYTES", int(2.2 * len(CAT)))
    messages = [
        PromptMessage(USER, f"{MARK}{number}", pictures=(shown(CAT, f"{number}.png"),))
        for number in range(3)
    ]
    contents = PictureParts("usual").contents_of(messages)
    assert contents[0][0] == {"type": "text", "text": "[0.png: this picture is no longer sent]"}
    assert [contents[index][0]["type"] for index in (1, 2)] == ["image_url"] * 2


def test_broken_files_and_bombs_are_refused() -> None:
    for content in (b"", b"no picture", CAT[:40], saved(Image.new("1", (20_000, 20_000)))):
        with pytest.raises(EngineError, match=r"^a\.png: "):
            fit_file(content, 1536, MAX_PICTURE_BYTES, "a.png")


@pytest.mark.slow
def test_our_own_server_reads_what_is_sent(tmp_path: Path) -> None:
    described = families.keyed(
        tiny_gguf.model("qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16, context_length=N_CTX),
        **{"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")},
    )
    tiny_mmproj.qwen3vl().write(tmp_path / "mmproj-m.gguf")
    n_tokens = []
    with tiny_server(tmp_path, described=described) as client:
        for pictures in ((), (shown(CAT),), (shown(CAT), shown(saved(image(), "WEBP")))):
            with talking(f"{client.base_url}/v1", sampling={"max_tokens": 2}) as talk:
                *_, last_event = talk.ask("What is it?", pictures)
                n_tokens.append(last_event.figures.prompt_tokens)
                n_tokens[-1] += last_event.figures.reused_tokens
    assert n_tokens[1] >= n_tokens[0] + 6
    assert n_tokens[2] - n_tokens[1] == n_tokens[1] - n_tokens[0]

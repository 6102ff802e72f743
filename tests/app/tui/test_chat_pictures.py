"""Pictures in the chat: pasted, shown, sized before sending, and refused by models that are
blind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from textual.events import Paste

from app.documents.pictures import PICTURES, references_in
from app.models.library import seeing_models
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from app.tui.chat import draft_pictures
from app.tui.widgets.picture_preview import PicturePreview, PreviewRow
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "my cat.png"
    pixels = np.full((64, 128, 3), 90, np.uint8)
    pixels[:, :64] = 200
    Image.fromarray(pixels).save(path)
    return path


async def attached(driver: Driver, pasted: str) -> None:
    driver.prompt.post_message(Paste(pasted))
    line = driver.chat.composer.pictures.line
    await driver.until(lambda: "[file" in driver.prompt.text and line.display, "the picture")


async def command(driver: Driver, text: str) -> None:
    """Type a command after the chips of the draft, and carry it out."""
    draft = driver.prompt.draft
    driver.prompt.show_draft(replace(draft, folded_text=draft.folded_text + text))
    await driver.pilot.press("enter")


def lines_of(driver: Driver) -> str:
    return str(driver.chat.composer.pictures._text.render())


@pytest.mark.parametrize(
    "written",
    [
        lambda path: f"'{path}'",
        lambda path: str(path).replace(" ", "\\ "),
        lambda path: f"file://{str(path).replace(' ', '%20')}",
    ],
)
async def test_a_pasted_path_becomes_a_picture(
    picture: Path, written: Callable[[Path], str]
) -> None:
    async with chatting(Script(sees=True)) as driver:
        driver.prompt.focus()
        await driver.pilot.press("w", "h", "o", "space")
        await attached(driver, written(picture))
        assert driver.prompt.text.endswith("who ")
        assert "my cat.png: 128 x 64 pixels" in lines_of(driver)

        await driver.pilot.press("enter")
        conversation = driver.chat.core.chat_session.conversation
        await driver.until(lambda: not conversation.is_empty, "the message")
        reference = next(references_in(conversation.messages[0].text))
        assert (reference.name, reference.size, reference.detail) == (
            "my cat.png",
            (128, 64),
            "usual",
        )
        assert PICTURES.find(reference.digest) == picture.read_bytes()
        await driver.until(lambda: driver.transcript.query(PreviewRow), "the preview")
        line = driver.chat.composer.pictures.line
        await driver.until(lambda: not line.display, "the end of the draft")


async def test_the_detail_changes_pictures_before_sending(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        assert "read at 128 x 64, 8 tokens" in lines_of(driver)
        await command(driver, "/detail high")
        await driver.until(lambda: "read at 256 x 128, 32 tokens" in lines_of(driver), "the size")
        (text,) = driver.prompt.draft.folds.values()
        assert next(references_in(text)).detail == "high"
        await command(driver, "/detail")
        await driver.until(
            lambda: "low: my cat.png at 64 x 32" in driver.screen_text(), "all sizes"
        )
        await command(driver, "/detail huge")
        await driver.until(lambda: "must be low, usual, high" in driver.screen_text(), "a line")


async def test_a_typed_name_shows_its_picture(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(picture.parent)
    picture.rename("cat.png")
    async with chatting(Script(sees=True)) as driver:
        driver.prompt.focus()
        await driver.pilot.press("at", *"cat.png", "space")
        await driver.until(lambda: "128 x 64 pixels" in lines_of(driver), "the picture")


@pytest.mark.parametrize("typed", ["@cat.png what is it", "/read cat.png"])
async def test_a_blind_model_gets_no_picture(
    picture: Path, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(picture.parent)
    picture.rename("cat.png")
    monkeypatch.setattr(
        seeing_models, "seeing_model_line", lambda *_: "Qwen3.5 4B can: F7 downloads it"
    )
    async with chatting() as driver:
        driver.prompt.focus()
        driver.prompt.show_text(typed)
        await driver.pilot.press("enter")
        await driver.until(lambda: "cannot see pictures. Qwen3.5 4B" in driver.screen_text())
        assert driver.chat.core.chat_session.conversation.is_empty
        if typed.startswith("@"):
            assert driver.prompt.text == typed


async def test_a_picture_from_the_clipboard(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_picture() -> bytes:
        raise Refusal("the clipboard has no picture")

    async with chatting(Script(sees=True)) as driver:
        monkeypatch.setattr(draft_pictures, "read_picture", no_picture)
        await driver.say("/paste")
        await driver.until(lambda: "the clipboard has no picture" in driver.screen_text())
        monkeypatch.setattr(draft_pictures, "read_picture", picture.read_bytes)
        await driver.say("/paste")
        await driver.until(lambda: "clipboard.png: 128 x 64" in lines_of(driver), "the picture")


async def test_the_setting_turns_previews_off(picture: Path) -> None:
    for preview in ("on", "off"):
        settings = replace(built_in_settings().pictures, preview=preview)
        async with chatting(Script(sees=True), pictures=settings) as driver:
            await attached(driver, f"'{picture}'")
            is_shown = bool(driver.chat.composer.pictures.line.query(PicturePreview))
            assert is_shown == (preview == "on")


async def test_a_preview_has_the_colours_of_the_picture(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        preview = driver.chat.composer.pictures.line.query_one(PicturePreview)
        await driver.until(lambda: preview.has_pixels, "the pixels")
        await asyncio.sleep(0)
        styles = [segment.style for segment in preview.render_line(0)]
        assert preview.size == (16, 4)
        assert [str(style) for style in (styles[0], styles[-1])] == [
            "#c8c8c8 on #c8c8c8",
            "#5a5a5a on #5a5a5a",
        ]

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
from engine.errors import BrokenModelError
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script


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
        await driver.until(lambda: preview.has_pixels and preview.size.width, "the pixels")
        await asyncio.sleep(0)
        styles = [segment.style for segment in preview.render_line(0)]
        assert preview.size == (16, 4)
        assert [str(style) for style in (styles[0], styles[-1])] == [
            "#c8c8c8 on #c8c8c8",
            "#5a5a5a on #5a5a5a",
        ]


ADVICE = "Qwen3.5 4B can: F7 downloads it"


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeing_models, "seeing_model_line", lambda *_: ADVICE)


def waits_in_prompt(driver: Driver, question: str) -> bool:
    """Return whether the picture and the question are in the prompt, and nothing is sent."""
    draft = driver.prompt.draft
    (picture,) = references_in(draft.text)
    is_kept = PICTURES.find(picture.digest) is not None
    is_unsent = driver.chat.core.chat_session.conversation.is_empty
    return is_kept and is_unsent and "[file" in draft.folded_text and draft.text.endswith(question)


@pytest.mark.usefixtures("advice")
@pytest.mark.parametrize("is_typing", [False, True])
async def test_a_queued_picture_comes_back_from_a_blind_model(
    picture: Path, is_typing: bool
) -> None:
    script = Script(open_gate=Gate())
    async with chatting(script, wait=False) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        await driver.pilot.press("enter")
        session = driver.chat.core.chat_session
        await driver.until(lambda: session.queued_texts, "the queue")
        if is_typing:
            await driver.pilot.press(*"other")
        assert script.open_gate is not None
        script.open_gate.open()
        note = await driver.note(ADVICE)
        assert "my cat.png: model cannot see pictures. " in note
        assert not session.queued_texts
        if is_typing:
            assert driver.prompt.text == "other"
            assert note.endswith("up brings the message back")
            await driver.pilot.press("ctrl+c", "up")
            await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text != "other", "the message")
        assert waits_in_prompt(driver, "Who")


@pytest.mark.usefixtures("advice")
async def test_a_picture_waits_in_the_prompt_while_the_model_is_blind(picture: Path) -> None:
    script = Script(sees=True)
    async with chatting(script) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        script.sees = False
        await driver.chat.models._switch(Path("blind.gguf"), keeps=True)
        note = await driver.note(ADVICE)
        assert "my cat.png: blind cannot see pictures. " in note
        await driver.until(lambda: "blind cannot see it" in lines_of(driver), "the line")
        assert waits_in_prompt(driver, "Who")
        driver.prompt.focus()
        await driver.pilot.press("enter")
        await driver.until(lambda: sum(ADVICE in note for note in driver.notes()) == 2, "a line")
        assert waits_in_prompt(driver, "Who")

        script.sees = True
        await driver.chat.models._switch(Path("seeing.gguf"), keeps=True)
        await driver.until(lambda: "read at 128 x 64" in lines_of(driver), "the cost")
        await driver.pilot.press("enter")
        await driver.last_reply()
        message = driver.chat.core.chat_session.conversation.messages[0]
        assert [reference.name for reference in references_in(message.text)] == ["my cat.png"]


@pytest.mark.usefixtures("advice")
async def test_a_restored_draft_keeps_its_picture_with_a_blind_model(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        assert driver.chat.composer.save_drafts(10)
    PICTURES._contents.clear()
    async with chatting() as driver:
        await driver.note(ADVICE)
        await driver.note("it is in the prompt again")
        assert waits_in_prompt(driver, "Who")
    PICTURES._contents.clear()
    async with chatting(Script(sees=True)) as driver:
        await driver.until(lambda: "read at 128 x 64" in lines_of(driver), "the cost")
        assert waits_in_prompt(driver, "Who")


@pytest.mark.usefixtures("advice")
async def test_a_picture_without_its_chip_is_refused_too(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        text = driver.prompt.draft.text
    async with chatting() as driver:
        await driver.say(f"{text}Who")
        await driver.note(ADVICE)
        assert driver.prompt.draft.text == f"{text}Who"
        assert driver.chat.core.chat_session.conversation.is_empty


async def test_a_blind_model_answers_after_an_unanswered_picture(
    picture: Path,
) -> None:
    script = Script(sees=True, prefill_gate=Gate())
    async with chatting(script) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        await driver.pilot.press("enter")
        assert script.prefill_gate is not None
        await driver.until(script.prefill_gate.waiting.is_set, "the prompt")
    script = Script()
    async with chatting(script) as driver:
        await driver.note("The last message has no reply")
        await driver.ask("hello")
        question, reply = driver.chat.core.chat_session.conversation.messages
        assert [reference.name for reference in references_in(question.text)] == ["my cat.png"]
        assert reply.text == "Hello there."
        (model,) = script.opened
        read_text = model.tokenizer.decode(model.sessions[0].tokens)
        assert "[my cat.png: a picture, which this model cannot see]" in read_text


async def test_a_picture_whose_file_is_lost_is_not_sent(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        PICTURES._contents.clear()
        await driver.pilot.press("enter")
        await driver.note("my cat.png: the picture is no longer kept (attach its file again)")
        assert driver.prompt.text.endswith("Who")
        assert driver.chat.core.chat_session.conversation.is_empty


async def test_a_chosen_picture_is_sent_though_its_file_changes(picture: Path) -> None:
    content = picture.read_bytes()
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        picture.unlink()
        await driver.pilot.press(*"Who")
        await driver.pilot.press("enter")
        await driver.last_reply()
        message = driver.chat.core.chat_session.conversation.messages[0]
        assert PICTURES.find(next(references_in(message.text)).digest) == content


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda path: path.unlink(), "cat.png: no such file"),
        (lambda path: path.write_bytes(b"not a picture"), "cat.png: is no picture"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "cat.png: is damaged"),
        (lambda path: path.write_bytes(b""), "cat.png: is no picture"),
    ],
)
async def test_a_typed_picture_that_changes_before_it_is_sent(
    picture: Path,
    change: Callable[[Path], object],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(picture.parent)
    path = picture.rename("cat.png")
    async with chatting(Script(sees=True)) as driver:
        driver.prompt.focus()
        await driver.pilot.press("at", *"cat.png", "space", *"Who")
        await driver.until(lambda: "128 x 64 pixels" in lines_of(driver), "the picture")
        change(path)
        await driver.pilot.press("enter")
        await driver.note(problem)
        await driver.until(lambda: driver.prompt.text == "@cat.png Who", "the message is back")
        assert driver.chat.core.chat_session.conversation.is_empty
        assert len([note for note in driver.notes() if "cat.png" in note]) == 1


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_picture_that_the_encoder_cannot_read_comes_back(
    picture: Path, is_queued: bool
) -> None:
    error = BrokenModelError("mmproj.gguf: the encoder computed NaN or infinity")
    script = Script(sees=True)
    async with chatting(script) as driver:
        await driver.ask("first")
        if is_queued:
            script.token_gate = Gate()
            await driver.say("second")
            await driver.until(script.token_gate.waiting.is_set, "the reply")
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who")
        script.prefill_error = error
        await driver.pilot.press("enter")
        session = driver.chat.core.chat_session
        if script.token_gate is not None:
            await driver.until(lambda: session.queued_texts, "the queue")
            script.token_gate.open()
        note = await driver.note("NaN")
        assert note == f"{error} (the message is in the prompt again)"
        (reference,) = references_in(driver.prompt.draft.text)
        assert reference.name == "my cat.png"
        assert driver.prompt.text.endswith("Who")
        assert not session.conversation.awaits_reply
        script.prefill_error = None
        await driver.pilot.press("enter")
        await driver.until(lambda: session.conversation.last_reply is not None, "a reply")
        await driver.until(lambda: not session.is_busy, "the end")
        assert "[picture" in session.conversation.messages[-2].text


async def test_a_text_is_found_next_to_a_picture(picture: Path) -> None:
    async with chatting(Script(sees=True)) as driver:
        await attached(driver, f"'{picture}'")
        await driver.pilot.press(*"Who", "enter")
        await driver.last_reply()
        await driver.say("/find who")
        await driver.shows("1 of 1")
        await driver.shows("[my cat.png: 128 x 64 pixels] Who")
        await driver.pilot.press("escape")
        await driver.say("/find cat.png")
        await driver.shows("find: cat.png · 1 of 1")

"""The encoder at work: progress, time left, speeds that are kept, and stopping."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.backend.engine_link import EngineLink
from app.backend.local.picture_reading import TYPICAL_GOPS, PictureReading
from app.backend.local.prompt_pictures import PromptPictures
from app.conversations.conversation import USER, PromptMessage
from app.documents.pictures import PICTURES, REFERENCE_START
from app.machine.sensors.reply_history import ReplyHistory
from engine.errors import Cancelled
from tests.app.fake_engine import FakeModel, Script

SIZE = 2000, 500


class Reading:
    """A reading of pictures, and the clock that it looks at."""

    def __init__(self, history: ReplyHistory | None = None) -> None:
        self.now_s = 100.0
        self.link = EngineLink(lambda: self.now_s)
        self.model: Any = FakeModel("m.gguf", Script(sees=True))
        chat: Any = SimpleNamespace(pictures={})
        self.pictures = PromptPictures(self.model, chat, "usual")
        self.reading = PictureReading(
            self.link, history or ReplyHistory(), self.model, self.pictures
        )
        content = b"a picture"
        digest = PICTURES.add(content)
        self.text = f"cat.png:\n```\n{REFERENCE_START}2000 x 500 {digest}]\n```\nWho?"
        self.pictures.placed(PromptMessage(USER, self.text))
        self.prepared = self.model.pictures.encoder.prepare_bytes(content, "usual", "cat.png")

    def report(self, share: float, now_s: float) -> None:
        self.now_s = now_s
        self.model.pictures.on_progress(self.prepared, share)

    def read(self, seconds: float) -> None:
        for step in range(5):
            self.report(step / 4, 200 + step / 4 * seconds)


def test_progress_counts_down() -> None:
    reading = Reading()
    reading.report(0, 100)
    encoding = reading.link.status.encoding
    assert encoding is not None
    assert encoding.name == "cat.png"
    assert encoding.left_s == pytest.approx(1 / (2 * TYPICAL_GOPS))
    reading.report(0.25, 160)  # kernels were compiled
    reading.report(0.5, 162)
    encoding = reading.link.status.encoding
    assert encoding is not None
    assert encoding.seconds_left(162) == pytest.approx(4)
    assert encoding.seconds_left(165) == pytest.approx(1)
    assert encoding.seconds_left(999) == 0
    assert reading.reading.encoded_s == pytest.approx(62)
    reading.reading.end_picture()
    assert reading.link.status.encoding is None


def test_the_speed_of_a_picture_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    reading = Reading(ReplyHistory(path))
    costs = reading.link.state.picture_costs
    assert costs is not None
    estimate = costs.of(SIZE, "usual")
    assert (estimate.width, estimate.height, estimate.n_tokens) == (1984, 512, 992)
    assert estimate.encode_s == pytest.approx(992 / (2 * TYPICAL_GOPS))
    reading.read(seconds=4)
    reading.reading.save_speed()
    for opened in (reading, Reading(ReplyHistory(path))):
        costs = opened.link.state.picture_costs
        assert costs is not None
        assert costs.products_per_s == pytest.approx(0.25e9)
        assert costs.of(SIZE, "usual").encode_s == pytest.approx(4 * 992)


def test_a_stop_before_the_encoder_begins_counts() -> None:
    reading = Reading()
    reading.link.inbox.stop_requested.set()
    with pytest.raises(Cancelled):
        reading.report(0, 100)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_picture_that_is_sent_is_finished(is_sent: bool) -> None:
    reading = Reading()
    idle_work = reading.link.inbox.idle_work
    cancelled: list[bool] = []
    session = SimpleNamespace(cancel=lambda: cancelled.append(True))
    assert idle_work.begin()
    with idle_work.computing(session):
        reading.report(0, 100)
        idle_work.drop(reading.text if is_sent else "another message")
        idle_work.drop_again()
        assert bool(cancelled) == (not is_sent)
        reading.reading.end_picture()
        idle_work.drop_again()
        assert cancelled


def test_a_blind_model_reads_on_in_a_conversation_with_pictures() -> None:
    reading = Reading()
    message = PromptMessage(USER, reading.text)
    reading.model.pictures.encoder = None
    text = reading.pictures.placed(message, is_last=False)
    assert text == "[cat.png: a picture, which this model cannot see]\nWho?"

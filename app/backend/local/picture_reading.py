"""Pictures that the encoder reads: progress for the status, and speeds for later estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.backend.picture_costs import EncodingProgress, PictureCosts
from app.machine.sensors.reply_history import (
    ENCODE_GOPS,
    ReplyHistory,
    history_key,
    identity_of,
    rates_key,
)
from app.text.record import record
from engine.errors import Cancelled

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from app.backend.local.prompt_pictures import PromptPictures
    from engine import Model
    from engine.vision.encoder import PictureEncoder
    from engine.vision.rows import PreparedPicture

TYPICAL_GOPS = 20.0
"""10^9 multiplications per second of a thread of an old laptop, for estimates without
measurements."""


@record
class _PictureBegun:
    """A picture that the encoder reads."""

    name: str
    products: int
    first_share: float = 0.0
    """Share that was done at the end of the first layer; 0 before."""
    first_s: float = 0.0
    """Time of that."""


class PictureReading:
    """Follows the encoder of one open model.

    Args:
        pictures: pictures of the conversation.

    Attributes:
        encoded_s: seconds that the encoder has worked since the last request began.
    """

    def __init__(
        self,
        link: EngineLink,
        history: ReplyHistory,
        model: Model,
        pictures: PromptPictures,
    ) -> None:
        self.encoded_s = 0.0
        self._link = link
        self._history = history
        self._model = model
        self._pictures = pictures
        self._picture: _PictureBegun | None = None
        self._reported_s = 0.0
        self._rate = 0.0
        """Multiplications per second of the last picture; 0 before the first."""
        self._saved_rate = 0.0
        encoder = model.pictures.encoder
        if encoder is not None:
            model.pictures.on_progress = self._report
            link.update(picture_costs=PictureCosts(encoder.costs, self._expected_rate(encoder)))

    def _expected_rate(self, encoder: PictureEncoder) -> float:
        """Return the multiplications per second of earlier pictures, else those of prompts, else
        those of an old laptop."""
        threads = self._model.prefill_threads
        rates = self._history.rates(_key(encoder, threads))
        gops = rates.get(ENCODE_GOPS, 0.0)
        if not gops:
            known = self._history.rates(rates_key(threads))
            gops = known.get("prefill_gops Q8_0", TYPICAL_GOPS * threads)
        return gops * 1e9

    def _report(self, picture: PreparedPicture, share: float) -> None:
        if self._link.is_stopped():  # A session forgets a stop that comes before it computes.
            raise Cancelled("stopped")
        costs = self._link.state.picture_costs
        encoder = self._model.pictures.encoder
        if costs is None or encoder is None:
            return
        now_s = self._link.now_s()
        if share == 0 or self._picture is None:
            name, file_digest = self._pictures.file_of(picture.digest)
            self._link.inbox.idle_work.picture = file_digest
            self._picture = _PictureBegun(name, encoder.products(picture))
        else:
            self.encoded_s += now_s - self._reported_s
        self._reported_s = now_s

        picture_begun = self._picture
        rate = costs.products_per_s
        if picture_begun.first_share > 0:
            products = (share - picture_begun.first_share) * picture_begun.products
            rate = self._rate = products / max(1e-9, now_s - picture_begun.first_s)
        elif share > 0:
            # The time before also opened weights and linked kernels.
            self._picture = replace(picture_begun, first_share=share, first_s=now_s)
        left_s = (1 - share) * picture_begun.products / rate
        self._link.update_status(
            encoding=EncodingProgress(picture_begun.name, share, now_s, left_s)
        )

    def begin(self) -> None:
        """Begin a request."""
        self.encoded_s = 0.0
        self.end_picture()

    def end_picture(self) -> None:
        """Note that the encoder has read a picture, or was stopped."""
        self._picture = None
        self._link.inbox.idle_work.picture = ""
        self._link.update_status(encoding=None)

    def save_speed(self) -> None:
        """Save the speed of the last picture, if the encoder has read one since."""
        encoder = self._model.pictures.encoder
        costs = self._link.state.picture_costs
        if encoder is None or costs is None or self._rate == self._saved_rate:
            return
        self._saved_rate = self._rate
        self._link.update(picture_costs=replace(costs, products_per_s=self._rate))
        key = _key(encoder, self._model.prefill_threads)
        self._history.remember_rates(key, {ENCODE_GOPS: self._rate / 1e9}, is_quiet=True)


def _key(encoder: PictureEncoder, threads: int) -> str:
    return history_key(identity_of("encoder", encoder.path.name, encoder.config), threads)

"""Changed regions look as Textual would draw them, and nothing else is drawn."""

from __future__ import annotations

import re
from random import Random
from unittest.mock import patch

import pytest
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.widget import Widget

from app.tui.textual_hacks import ThriftyCompositor
from app.tui.widgets.status_line import StatusLine
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script

pytestmark = pytest.mark.usefixtures("every_frame")

_MOVE_FOR_NOTHING = re.compile(r"\x1b\[\d+;\d+H(?=\x1b\[\d+;\d+H|\n|$)")
_REPLY = [
    "# A title\n\n",
    "Some words, *some* of them slanted.\n\n",
    "- one\n- two\n\n",
    "```\ncode = 1\n```\n",
]


def drawn(driver: Driver, regions: set[Region], compositor: type[Compositor]) -> str:
    """Return the output to the terminal after these regions changed."""
    own = driver.app.screen._compositor
    assert isinstance(own, ThriftyCompositor)
    own._dirty_regions = set(regions)
    update = compositor.render_partial_update(own)
    assert isinstance(update, ChopsUpdate)
    return _MOVE_FOR_NOTHING.sub("", update.render_segments(driver.app.console))


async def test_any_regions_look_as_textual_draws_them() -> None:
    random = Random(1)
    async with chatting(Script(replies=[_REPLY])) as driver:
        await driver.ask("A question")
        for size in ((80, 24), (40, 12), (120, 40)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda size=size: driver.chat._compositor.size == size)
            for _ in range(8):
                regions = set()
                for _ in range(random.randint(1, 4)):
                    x = random.randrange(size[0])
                    y = random.randrange(size[1])
                    regions.add(
                        Region(
                            x,
                            y,
                            random.randint(1, size[0] - x),
                            random.randint(1, min(4, size[1] - y)),
                        )
                    )
                assert drawn(driver, regions, ThriftyCompositor) == drawn(
                    driver, regions, Compositor
                )


async def test_only_visible_changed_widgets_are_drawn() -> None:
    async with chatting(Script(replies=[_REPLY])) as driver:
        await driver.ask("A question")
        status = driver.chat.query_one(StatusLine)
        names: list[str] = []
        render_lines = Widget.render_lines

        def noted(widget: Widget, crop: Region) -> list[object]:
            names.append(type(widget).__name__)
            return render_lines(widget, crop)

        with patch.object(Widget, "render_lines", noted):
            drawn(driver, {status.region}, ThriftyCompositor)
        assert names == ["StatusLine"], "nothing after it"


async def test_a_moved_scroll_bar_is_redrawn() -> None:
    async with chatting(Script(replies=[[word + " " for word in _REPLY] * 6])) as driver:
        await driver.ask("A question")
        await driver.ask("Another")
        for size in ((60, 20), (40, 15), (80, 24)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda size=size: driver.transcript.region.width == size[0])
            await driver.pilot.pause()
            drawn = driver.screen_text()
            driver.transcript.vertical_scrollbar.refresh()
            assert driver.screen_text() == drawn

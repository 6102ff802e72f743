"""Polling of an idle chat."""

from unittest.mock import patch

from app.tui.chat.events import REST_EVERY
from app.tui.widgets.status_line import StatusLine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script


async def test_an_idle_chat_rebuilds_no_unchanged_line() -> None:
    async with chatting(Script()) as driver:
        await driver.until(lambda: "tok/s" in driver.chat.query_one(StatusLine).line)
        feed = driver.chat.feed
        shown = []
        await driver.until(lambda: feed._is_at_rest)
        with patch.object(type(driver.chat.core.edge), "show_keys", lambda _: shown.append(1)):
            feed._n_rests = 0
            for _ in range(3 * REST_EVERY):
                feed.drain()
            assert len(shown) == 3
            feed._rss_bytes += 1 << 30
            feed.drain()
            assert len(shown) == 4
            assert feed._is_at_rest

"""Tests of the screens with a remote model, and of switching to a file and back."""

from __future__ import annotations

import pytest

from app.models.library import scan
from app.program.remote_model import RemoteModel
from app.program.settings import built_in_settings, override
from app.tui.app import JalopyApp
from app.tui.chat_options import chat_options
from tests.app.backend.remote.raw_api import answering, stream
from tests.app.chat_driver import Driver
from tests.app.fake_engine import Script

pytestmark = pytest.mark.slow


async def test_screens_show_a_model_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "places", lambda directories: [])
    # The local backend must not be used.
    monkeypatch.setattr("app.backend.engine_thread._Backends.local", lambda self: 1 / 0)
    with answering(
        stream("Quite ", "well.", end=b""), stream(" Thanks."), stream("small here")
    ) as api:
        host = RemoteModel(api.url).host
        settings = override(built_in_settings(), "server", api.url, "--server")
        app = JalopyApp(settings, RemoteModel(api.url, "big"), options=chat_options(settings))
        async with app.run_test(size=(100, 30)) as pilot:
            driver = Driver(app, pilot, Script())

            async def shows(*words: str) -> None:
                await driver.until(
                    lambda: all(word in driver.screen_text() for word in words), f"shown: {words}"
                )

            await driver.ready()
            await shows(f"big · {host}", f"runs on {host} · room for 4,096 tokens")
            await driver.say("how are you?")
            await shows("Quite well.", f"{host}: the connection ended before the answer did")
            await driver.say("/continue")
            await shows("Quite well. Thanks.")
            await driver.say("/threads")
            await shows(f"{host} computes, and not threads of this machine")
            await pilot.press("f4")
            await shows("Computed elsewhere")
            await pilot.press("f2")
            await shows(f"computed by {host}", "computed elsewhere")
            for key in ("plus", "h", "p", "k", "u", "enter"):
                await pilot.press(key)
                await shows(f"{host} computes the replies, with its own threads and memory")
            await pilot.press("f3")
            await shows("small", f"computed by {host}")
            await pilot.press("tab")
            await shows("This model is on the server, which gives no details")
            await pilot.press(*"small", "enter")
            await shows(f"The whole conversation is sent to {host}")
            await pilot.press("y")
            await shows(f"small · {host}")
            await driver.say("and now?")
            await shows("small here")
    assert [len(body["messages"]) for body in api.bodies] == [1, 2, 3]

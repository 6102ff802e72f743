"""Work before the first frame: modules, parsed style sheets, styled widgets, paints."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from types import FrameType
from unittest.mock import patch

import pytest
from textual.css import stylesheet
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from app.tui.chat.screen import ChatScreen
from app.tui.textual_hacks import ThriftyCompositor, ThriftyStylesheet
from app.tui.widgets.performance_strip import PerformanceStrip
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script

pytestmark = pytest.mark.slow

_FIRST_FRAME = """
import sys
from pathlib import Path
from app.tui.start import import_textual
import_textual()
import asyncio
from app.tui.app import JalopyApp
from app.program.settings import built_in_settings

imported = []

async def start():
    async with JalopyApp(built_in_settings(), Path("none.gguf")).run_test(size=(100, 30)) as pilot:
        while not imported:
            await pilot.pause()
        await pilot.press("ctrl+p")
        while not any(palette.option_count for palette in pilot.app.screen.query("CommandList")):
            await pilot.pause()
        import ssl
        assert ssl.OPENSSL_VERSION

from app.tui.chat.screen import ChatScreen
ChatScreen._start_engine = lambda screen: imported.append(set(sys.modules))
asyncio.run(start())
print(sorted(imported[0] & NOT_NEEDED))
"""
_NOT_NEEDED = {
    "textual.command",
    "textual.widgets._directory_tree",
    "ssl",
    "hashlib",
    "statistics",
    "shlex",
    "psutil",
    "numba",
    "numpy",
    "markdown_it",
    "jinja2",
    "pygments",
    "urllib.request",
    "app.tui.chat.external_editor",
    "app.tui.widgets.performance_strip",
    "app.tui.widgets.figure_lines",
    "app.tui.drawing.graph",
    "app.tui.screens.performance",
    "app.tui.screens.threads",
    "app.tui.screens.models",
    "app.tui.screens.help",
    "app.tui.screens.palette",
    "app.tui.screens.conversations",
    "app.tui.screens.doctor",
    "app.backend.local.backend",
    "engine.model",
}


def test_the_first_frame_imports_only_what_it_shows() -> None:
    code = f"NOT_NEEDED = {_NOT_NEEDED!r}\n{_FIRST_FRAME}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


async def test_every_style_sheet_is_parsed_once_before_the_first_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # not shared with other tests
    monkeypatch.setattr(ThriftyStylesheet, "_parse_rules", Stylesheet._parse_rules)
    parsed: Counter[object] = Counter()
    parse = stylesheet.parse

    def noted(scope: str, css: str, read_from: object, *more: object, **options: object) -> object:
        parsed[read_from] += 1
        return parse(scope, css, read_from, *more, **options)  # type: ignore[arg-type]

    with patch.object(stylesheet, "parse", noted):
        async with chatting():
            assert len(parsed) > 10
            assert {name: n for name, n in parsed.items() if n > 1} == {}


@pytest.mark.smoke
async def test_another_theme_changes_colours_and_the_first_returns() -> None:
    async with chatting() as driver:
        before = driver.app.theme
        first = driver.prompt.styles.border_top
        assert isinstance(driver.app.stylesheet, ThriftyStylesheet)
        driver.app.theme = "textual-light"
        await driver.until(lambda: driver.prompt.styles.border_top != first)
        driver.app.theme = before
        await driver.until(lambda: driver.prompt.styles.border_top == first)


async def test_rules_are_hashed_without_python() -> None:
    called: list[object] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append((type(frame.f_locals.get("self")), frame.f_code.co_name))

    async with chatting() as driver:
        driver.prompt._classes.add("other")  # or there was nothing to look up
        sys.setprofile(note)
        try:
            driver.app.stylesheet.apply(driver.prompt)
        finally:
            sys.setprofile(None)
    assert (type(driver.app.stylesheet), "apply") in called
    assert (RuleSet, "__hash__") not in called


async def test_a_screens_size_does_not_restyle_all_widgets() -> None:
    restyled: list[int] = []
    update_nodes = Stylesheet.update_nodes

    def noted(sheet: Stylesheet, nodes: object, animate: bool = False) -> None:
        nodes = list(nodes)  # type: ignore[call-overload]
        restyled.append(sum(isinstance(node, ChatScreen) for node in nodes))
        update_nodes(sheet, nodes, animate)

    with patch.object(Stylesheet, "update_nodes", noted):
        async with chatting(model=None) as driver:
            await driver.pilot.pause()
            assert driver.chat.has_class("-normal")
            assert driver.chat.has_class("-high")
            # As the screen comes there are its style sheet, its theme; with its widgets the theme
            # once more.
            assert sum(restyled) <= 3


async def test_the_first_frame_is_painted_once_before_the_engine() -> None:
    happened: list[str] = []
    render = ThriftyCompositor.render_update
    begin = ChatScreen._start_engine

    def noted(compositor: ThriftyCompositor, *given: object, **options: object) -> object:
        update = render(compositor, *given, **options)  # type: ignore[arg-type]
        held_back = compositor.root is not None and compositor.root.app._batch_count
        happened.extend(["painted"] if update is not None else [])
        assert not (update is not None and held_back), (
            "what is held back is not drawn, and then drawn again"
        )
        return update

    def begun(screen: ChatScreen) -> None:
        happened.append("engine")
        begin(screen)

    with (
        patch.object(ThriftyCompositor, "render_update", noted),
        patch.object(ChatScreen, "_start_engine", begun),
    ):
        async with chatting(Script()):
            assert happened[0] == "painted"
            assert "engine" in happened


async def test_the_strip_is_created_when_first_shown() -> None:
    async with chatting() as driver:
        n_widgets = len(driver.chat.query("*"))
        await driver.pilot.press("ctrl+t")
        await driver.until(lambda: driver.chat.query(PerformanceStrip))
        assert len(driver.chat.query("*")) > n_widgets


async def test_a_widget_is_restyled_only_after_a_change() -> None:
    styled: Counter[object] = Counter()
    apply = Stylesheet.apply

    def noted(sheet: Stylesheet, node: object, **options: object) -> None:
        styled[node] += 1
        apply(sheet, node, **options)  # type: ignore[arg-type]

    with patch.object(Stylesheet, "apply", noted):
        async with chatting() as driver:
            await driver.pilot.press("f3")
            await driver.until(lambda: driver.app.screen is not driver.chat)
            await driver.pilot.pause()
            title = driver.app.screen.query_one("#list-title")
            before = driver.app.theme
            assert styled[title] == 1
            driver.app.theme = "textual-light"
            await driver.until(lambda: styled[title] == 2, "the colours are others")
            driver.app.theme = before
            await driver.until(lambda: styled[title] == 3)
            driver.app.screen.add_class("other")
            await driver.until(lambda: styled[title] == 4, "rules may ask what it is in")

"""The places where Textual's public interface is not enough, each with its reason and the day it
can go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from inspect import getfile
from itertools import count
from typing import Any, ClassVar, Literal, cast

from rich.console import RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._compositor import ChopsUpdate, Compositor
from textual.app import App
from textual.cache import LRUCache
from textual.containers import ScrollableContainer
from textual.css.model import RuleSet
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.driver import Driver
from textual.geometry import Region, Size
from textual.keys import Keys
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.scrollbar import ScrollBarRender
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList

from app.text.glyphs import choose_glyphs, is_console

LEAST_OPTION_COLUMNS = 8
SOURCES_KEPT = 512
"""More style sheets than there are: a source of every class of widgets, and one of every screen."""
KINDS_KEPT = 1024
"""More kinds of widgets, and places of such, than are shown at a time."""


class LineBar(ScrollBarRender):
    """Draws scroll bars as lines.

    Those of Textual 8.2 are blocks: without colours the brightest thing there is. Remove when it
    has a setting.
    """

    VERTICAL_BARS = HORIZONTAL_BARS = [" "] * 8

    @classmethod
    def render_bar(cls, *sizes: Any, **more: Any) -> Segments:
        """Return the bar's cells, each with what a click there does."""
        bar = super().render_bar(*sizes, **more)
        mark = choose_glyphs().upright
        for at, (text, style, _) in enumerate(bar.segments):
            if style is not None and style.reverse:
                bar.segments[at] = Segment(
                    mark * len(text), Style(color=style.color, meta=style.meta)
                )
        return bar


def teach_alt_enter() -> None:
    """Let alt+Enter break the line in terminals without the Kitty protocol, which send ESC CR for
    it.

    Textual 8.2 drops the ESC, so that alt+Enter would send the message. Remove when it reports
    "alt+enter" there too.
    """
    cast("dict[str, object]", ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)


def stop_and_go_on_between_events(driver: Driver) -> None:
    """Let the event loop obey SIGTSTP and SIGCONT, between two events.

    Textual 8.2 obeys them anywhere: while a frame is handed to the thread that writes, it waits for
    the queue's lock for ever. Where a process is continued that did not stop itself
    (``kill -CONT``, cpulimit, tmux), it starts a second pair of threads: both read the keys, and
    the modes to restore at the end are lost. Remove when it does not.
    """
    stop = signal.getsignal(signal.SIGTSTP)
    go_on = signal.getsignal(signal.SIGCONT)
    loop = asyncio.get_running_loop()

    def resume() -> None:
        if driver._auto_restart and not getattr(driver, "_must_signal_resume", True):
            driver.keeps_typed = True  # type: ignore[attr-defined]
            driver.suspend_application_mode()
            driver.keeps_typed = False  # type: ignore[attr-defined]
            driver._must_signal_resume = True  # type: ignore[attr-defined]
        if callable(go_on):
            go_on(signal.SIGCONT, None)

    if callable(stop):
        loop.add_signal_handler(signal.SIGTSTP, stop, signal.SIGTSTP, None)
    loop.add_signal_handler(signal.SIGCONT, resume)


class ThriftyCompositor(Compositor):
    """Draws, for an update of some regions, only widgets that are seen in them, and of those only
    the rows between.

    Textual 8.2 draws every widget that shares a container with an update, whole, and drops the rest
    then: two rows of a reply cost as much as all of the conversation. Remove when it does not.
    """

    _updated: tuple[Region, ...] = ()

    def render_update(
        self,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> RenderableType | None:
        """Render nothing while updates are held back: Textual 8.2 drops the result, and forgets
        what has changed."""
        if self.root is not None and self.root.app._batch_count:
            return None
        return super().render_update(full, screen_stack, simplify)

    def render_partial_update(self) -> ChopsUpdate | None:
        """Render what changed since the last update; None if nothing did."""
        self._updated = tuple(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._updated = ()

    def _get_renders(
        self, crop: Region | None = None
    ) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if not self._updated:
            yield from super()._get_renders(crop)
            return
        in_front: list[Region] = []
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            parts = (part for part in map(shown.intersection, self._updated) if part)
            changed = [
                part for part in parts if not any(front.contains_region(part) for front in in_front)
            ]
            if changed:
                in_front.append(shown)
                first = min(part.y for part in changed)
                last = max(part.bottom for part in changed)
                rows = Region(shown.x, first, shown.width, last - first)
                yield region, rows, widget.render_lines(rows.translate(-region.offset))


DEEPEST = 20
"""More classes than any widget has above it."""


_ASK_OF_OTHERS = Stylesheet._EXCLUDE_PSEUDO_CLASSES_FROM_CACHE
"""What a rule asks that depends on more than the widget and what it is in."""


class CachedRules(dict[Any, RulesMap]):
    """What the rules say of any widget of the same kind in the same place: Textual's own key leaves
    out the place."""

    def get(self, key: object, default: object = None) -> Any:
        """Return what was found, whatever the key."""
        return next(iter(self.values()), default)


class ThriftyStylesheet(Stylesheet):
    """Parses a source again only when a variable has changed since, and looks rules up without a
    call of Python.

    Textual 8.2 parses every source again for each that is added, and twice more before the first
    frame. For each widget it hashes every rule by a method: a fourteenth of the cost of a screen.
    It styles each widget of a screen five times before it is shown, each time with all rules: here
    only when something has changed that they ask about, and what was found once serves all widgets
    of the kind. Remove when it does not.
    """

    _kind_numbers: ClassVar[LRUCache[tuple[Any, ...], int]] = LRUCache(KINDS_KEPT)
    _found: ClassVar[LRUCache[tuple[Any, ...], CachedRules]] = LRUCache(KINDS_KEPT)
    _next_number = count(1)

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]
        self._parse_cache = LRUCache[tuple[Any, ...], list[RuleSet]](SOURCES_KEPT)
        self._kinds = LRUCache[tuple[Any, ...], int](KINDS_KEPT)
        self._look = hash(frozenset(variables.items()))
        # As weak as the depth in the deepest class: else it is parsed again for each deeper class.
        classes: tuple[type[Widget], ...] = (ScrollableContainer, Widget)
        for depth, widget_class in enumerate(classes, DEEPEST - 1):
            name = widget_class.__name__
            location = (getfile(widget_class), f"{name}.DEFAULT_CSS")
            self.add_source(
                widget_class.DEFAULT_CSS,
                location,
                is_default_css=True,
                tie_breaker=-depth,
                scope=name,
            )

    def parse(self) -> None:
        """Put the rules of all sources together."""
        super().parse()
        self._kinds.clear()

    def apply(self, node: DOMNode, *, animate: bool = False, cache: object = None) -> None:
        """Style a node, unless all that its rules ask about is as it was when it was last
        styled."""
        kind = self._kind_of(node)
        if kind < 0:
            super().apply(node, animate=animate)
            return
        place = self._place_of(node)
        if getattr(node, "styled_for", None) == place:
            return
        found = self._found.get(place)
        if found is None:
            self._found[place] = found = CachedRules()
        super().apply(node, animate=animate, cache=found)
        node.styled_for = place  # type: ignore[attr-defined]

    def _place_of(self, node: DOMNode) -> tuple[Any, ...]:
        """Return what rules may ask of a node and of all that it is in."""
        # rules of a widget's parts, which are not among its own, name colours too
        place: list[Any] = [self._look]
        at: object = node
        while isinstance(at, DOMNode):
            place.append((self._kind_of(at), at._pseudo_classes_cache_key))
            if isinstance(at, Widget):
                place.append(at.allow_focus())
            elif isinstance(at, App):
                place.append(
                    (at.app_focus, at.current_theme.dark, at.native_ansi_color, at.no_color)
                )
            at = at._parent
        return tuple(place)

    def _kind_of(self, node: DOMNode) -> int:
        """Number what a node is, and the rules that name such a one; below 0 where these ask of its
        neighbours."""
        own = type(node), node._id, node.classes
        rules_map = self.rules_map
        kind = self._kinds.get(own)
        if kind is None:
            named = {
                rule for name in rules_map.keys() & node._selector_names for rule in rules_map[name]
            }
            key = (own, *filter(named.__contains__, self.rules))
            kind = self._kind_numbers.get(key)
            if kind is None:
                is_own = all(_ASK_OF_OTHERS.isdisjoint(rule.pseudo_classes) for rule in named)
                kind = next(self._next_number) * (1 if is_own else -1)
                self._kind_numbers[key] = kind
            self._kinds[own] = kind
        return kind

    def set_variables(self, variables: dict[str, str]) -> None:
        """Take a theme's variables."""
        if variables != self._variables:
            super().set_variables(variables)
            self._look = hash(frozenset(variables.items()))

    def reparse(self) -> None:
        """Put the rules of all sources together; those of unchanged ones stay the same."""
        self.parse()


def make_thrifty(screen: Screen[Any]) -> None:
    """Give a screen that has no widgets yet the classes for its size, and the compositor that draws
    what changed.

    Textual 8.2 does the first when the laid out screen learns its size, and then styles every
    widget again. Remove when it does not.
    """
    screen._compositor = ThriftyCompositor()
    size = screen.app.size
    app = screen.app
    axes = ((size.width, app.HORIZONTAL_BREAKPOINTS), (size.height, app.VERTICAL_BREAKPOINTS))
    names = {
        name
        for length, points in axes
        for name in screen._get_breakpoint_classes(length, points or [])
    }
    screen.update_classes(dict.fromkeys(names, True), update=False)


def draw_bar_that_moved(view: Widget) -> None:
    """Draw the scroll bar again where a layout has moved what is anchored to its end.

    Textual 8.2 only sets where the bar is, which then stays as it was drawn. Remove when it draws
    it.
    """
    drawn_at = view.vertical_scrollbar.position

    def note(_: object) -> None:
        nonlocal drawn_at
        if view.show_vertical_scrollbar and view.vertical_scrollbar.position != drawn_at:
            drawn_at = view.vertical_scrollbar.position
            view.vertical_scrollbar.refresh()

    view.screen.screen_layout_refresh_signal.subscribe(view, note)


def run_last(node: DOMNode, group: str, work: partial[Coroutine[Any, Any, None]]) -> None:
    """Do this in place of earlier work of the group, which may not have begun: no coroutine waits
    for that in vain.

    Textual 8.2 takes such work, and its types do not say so. Remove when they do.
    """
    node.run_worker(work, group=group, exclusive=True)  # type: ignore[arg-type]


def call_once(
    pump: MessagePump, delay_s: float, callback: Callable[[], Awaitable[None] | None]
) -> Timer:
    """Call back once after the delay, however late.

    Textual 8.2 never calls where the process is held up for the delay while the timer begins.
    Remove when it does.
    """
    timer = pump.set_timer(delay_s, callback)
    timer._skip = False  # read for the first time when its task runs, later than this
    return timer


def tell_desktop(app: App[Any]) -> None:
    """Ring, and let terminals that can (OSC 9, OSC 777) show a notification; the others ignore it.

    Textual 8.2 writes nothing but its own sequences. Remove when it tells the desktop.
    """
    app.bell()
    driver = app._driver
    if driver is not None and not app.is_headless and not is_console():
        driver.write(
            "\x1b]9;jalopy: the answer is there\x1b\\"
            "\x1b]777;notify;jalopy;the answer is there\x1b\\"
        )
        driver.flush()


class Options(OptionList):
    """Options in any width and height: Textual 8.2 ends the program where there is room for none.

    Remove when not.
    """

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Say how high the options are in the width, or in a narrow one where there is none."""
        return super().get_content_height(container, viewport, max(width, LEAST_OPTION_COLUMNS))

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        """Go to another page, where the cursor's line is known."""
        if (self.highlighted or 0) in self._index_to_line:
            super()._move_page(direction)


def dismiss_once(screen: Screen[Any], result: object = None) -> None:
    """Leave a screen, unless it has been left already.

    Textual 8.2 leaves what is below as well, or fails where nothing is, when a second key follows
    before the first is heeded. Remove when it does not.
    """
    if screen.is_active:
        screen.dismiss(result)


def drop_bindings(widget: DOMNode, keys: Iterable[str]) -> None:
    """Take keys away from a widget that the user has given to something else.

    Textual 8.2 asks the focused widget's own bindings first, and those of ``TextArea`` have no ids
    to remap. Remove when they have.
    """
    for key in keys:
        widget._bindings.key_to_bindings.pop(key, None)

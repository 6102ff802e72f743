"""Workarounds where Textual's public interface is not enough, each with a condition for removal."""

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
from textual.filter import LineFilter
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
MAX_SOURCES = 512
"""Limit on cached style sheets, above the number of widget classes and screens."""
MAX_KINDS = 1024
"""Limit on cached kinds of widgets, above the number of kinds on a screen."""


class LineBar(ScrollBarRender):
    """Scroll bars as lines.

    Textual 8.2 draws blocks, which without colours are the brightest part of the screen. Remove
    when it has a setting.
    """

    VERTICAL_BARS = HORIZONTAL_BARS = [" "] * 8

    @classmethod
    def render_bar(cls, *sizes: Any, **options: Any) -> Segments:
        """Return the cells of the bar, each with its click action."""
        bar = super().render_bar(*sizes, **options)
        mark = choose_glyphs().upright
        for index, (text, style, _) in enumerate(bar.segments):
            if style is not None and style.reverse:
                bar.segments[index] = Segment(
                    mark * len(text), Style(color=style.color, meta=style.meta)
                )
        return bar


def teach_alt_enter() -> None:
    """Let alt+Enter start a new line in terminals that send ESC CR, without the Kitty protocol.

    Textual 8.2 drops the ESC, and alt+Enter would send the message. Remove when it reports
    "alt+enter" in these terminals.
    """
    cast("dict[str, object]", ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)


def add_line_filter(app: App[Any], line_filter: LineFilter) -> None:
    """Draw every line of an application through one more filter.

    Textual 8.2 has no public way but to override ``get_line_filters``, which runs for each line.
    """
    app._filters.append(line_filter)


def stop_and_go_on_between_events(driver: Driver) -> None:
    """Handle SIGTSTP and SIGCONT in the event loop, between two events.

    Textual 8.2 handles them anywhere. It deadlocks if a frame is being handed to the writing
    thread. If a process is continued that did not stop itself (``kill -CONT``, cpulimit, tmux), it
    starts a second pair of threads: both read keys, and the terminal modes to restore are lost.
    Remove when it does neither.
    """
    stop = signal.getsignal(signal.SIGTSTP)
    go_on = signal.getsignal(signal.SIGCONT)
    loop = asyncio.get_running_loop()

    def resume() -> None:
        if driver._auto_restart and not getattr(driver, "_must_signal_resume", True):
            driver.keeps_pending_input = True  # type: ignore[attr-defined]
            driver.suspend_application_mode()
            driver.keeps_pending_input = False  # type: ignore[attr-defined]
            driver._must_signal_resume = True  # type: ignore[attr-defined]
        if callable(go_on):
            go_on(signal.SIGCONT, None)

    if callable(stop):
        loop.add_signal_handler(signal.SIGTSTP, stop, signal.SIGTSTP, None)
    loop.add_signal_handler(signal.SIGCONT, resume)


class ThriftyCompositor(Compositor):
    """Compositor that draws only the visible widgets in updated regions, and only the rows there.

    Textual 8.2 draws every widget in the container of an update completely and then drops most of
    it: two rows of a reply cost as much as the entire conversation. Remove when it does not.
    """

    _updated: tuple[Region, ...] = ()

    def render_update(
        self,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> RenderableType | None:
        """Render nothing in a batch of updates.

        Textual 8.2 would drop the result and forget the changes.
        """
        if self.root is not None and self.root.app._batch_count:
            return None
        return super().render_update(full, screen_stack, simplify)

    def render_partial_update(self) -> ChopsUpdate | None:
        """Render the changes since the last update; None if there are none."""
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
            visible = region.intersection(clip)
            pieces = (piece for piece in map(visible.intersection, self._updated) if piece)
            changed = [
                piece
                for piece in pieces
                if not any(front.contains_region(piece) for front in in_front)
            ]
            if changed:
                in_front.append(visible)
                top = min(piece.y for piece in changed)
                bottom = max(piece.bottom for piece in changed)
                rows = Region(visible.x, top, visible.width, bottom - top)
                yield region, rows, widget.render_lines(rows.translate(-region.offset))


MAX_CLASS_DEPTH = 20
"""Limit on the base classes of a widget."""


_SIBLING_PSEUDO_CLASSES = Stylesheet._EXCLUDE_PSEUDO_CLASSES_FROM_CACHE
"""Pseudo classes that depend on the neighbours of a widget."""


class CachedRules(dict[Any, RulesMap]):
    """Rules for widgets of the same kind in the same context, under any key.

    Textual's own key leaves out the context.
    """

    def get(self, key: object, default: object = None) -> Any:
        """Return the cached rules, whatever the key."""
        return next(iter(self.values()), default)


class ThriftyStylesheet(Stylesheet):
    """Style sheet that caches parsed sources and the rules of each kind of widget.

    Textual 8.2 parses all sources again whenever one is added, and twice more before the first
    frame. For each widget it hashes every rule in Python, a fourteenth of the cost of a screen. It
    styles each widget of a screen five times before it is shown, each time with all rules. This
    class styles a widget again only if something has changed that its rules depend on. Remove when
    Textual does the same.
    """

    _kind_numbers: ClassVar[LRUCache[tuple[Any, ...], int]] = LRUCache(MAX_KINDS)
    _rules_cache: ClassVar[LRUCache[tuple[Any, ...], CachedRules]] = LRUCache(MAX_KINDS)
    _next_number = count(1)

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]
        self._parse_cache = LRUCache[tuple[Any, ...], list[RuleSet]](MAX_SOURCES)
        self._kinds = LRUCache[tuple[Any, ...], int](MAX_KINDS)
        self._theme_hash = hash(frozenset(variables.items()))
        # The priority is that of the deepest class, or Textual would parse again for each class.
        classes: tuple[type[Widget], ...] = (ScrollableContainer, Widget)
        for depth, widget_class in enumerate(classes, MAX_CLASS_DEPTH - 1):
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
        """Combine the rules of all sources."""
        super().parse()
        self._kinds.clear()

    def apply(self, node: DOMNode, *, animate: bool = False, cache: object = None) -> None:
        """Style a node, unless nothing has changed that its rules depend on."""
        kind = self._kind_number(node)
        if kind < 0:
            super().apply(node, animate=animate)
            return
        context = self._context_of(node)
        if getattr(node, "styled_for", None) == context:
            return
        cached_rules = self._rules_cache.get(context)
        if cached_rules is None:
            self._rules_cache[context] = cached_rules = CachedRules()
        super().apply(node, animate=animate, cache=cached_rules)
        node.styled_for = context  # type: ignore[attr-defined]

    def _context_of(self, node: DOMNode) -> tuple[Any, ...]:
        """Return everything that rules may depend on: state of a node and of its ancestors."""
        # Rules of a widget's component classes name colours, too.
        context: list[Any] = [self._theme_hash]
        ancestor: object = node
        while isinstance(ancestor, DOMNode):
            context.append((self._kind_number(ancestor), ancestor._pseudo_classes_cache_key))
            if isinstance(ancestor, Widget):
                context.append(ancestor.allow_focus())
            elif isinstance(ancestor, App):
                context.append(
                    (
                        ancestor.app_focus,
                        ancestor.current_theme.dark,
                        ancestor.native_ansi_color,
                        ancestor.no_color,
                    )
                )
            ancestor = ancestor._parent
        return tuple(context)

    def _kind_number(self, node: DOMNode) -> int:
        """Return a number for a node's class, id, CSS classes and matching rules.

        The number is negative if a rule depends on the node's neighbours.
        """
        identity = type(node), node._id, node.classes
        rules_map = self.rules_map
        kind = self._kinds.get(identity)
        if kind is None:
            matching_rules = {
                rule for name in rules_map.keys() & node._selector_names for rule in rules_map[name]
            }
            key = (identity, *filter(matching_rules.__contains__, self.rules))
            kind = self._kind_numbers.get(key)
            if kind is None:
                is_own = all(
                    _SIBLING_PSEUDO_CLASSES.isdisjoint(rule.pseudo_classes)
                    for rule in matching_rules
                )
                kind = next(self._next_number) * (1 if is_own else -1)
                self._kind_numbers[key] = kind
            self._kinds[identity] = kind
        return kind

    def set_variables(self, variables: dict[str, str]) -> None:
        """Set the variables of a theme."""
        if variables != self._variables:
            super().set_variables(variables)
            self._theme_hash = hash(frozenset(variables.items()))

    def reparse(self) -> None:
        """Combine the rules of all sources, reusing those of unchanged sources."""
        self.parse()


def make_thrifty(screen: Screen[Any]) -> None:
    """Give a screen without widgets the classes for its size, and ``ThriftyCompositor``.

    Textual 8.2 sets these classes after the first layout and then styles every widget again. Remove
    when it does not.
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
    """Redraw the scroll bar when a layout has moved a view that is anchored to its end.

    Textual 8.2 sets the new position without a redraw. Remove when it redraws.
    """
    drawn_at = view.vertical_scrollbar.position

    def note(_: object) -> None:
        nonlocal drawn_at
        if view.show_vertical_scrollbar and view.vertical_scrollbar.position != drawn_at:
            drawn_at = view.vertical_scrollbar.position
            view.vertical_scrollbar.refresh()

    view.screen.screen_layout_refresh_signal.subscribe(view, note)


def run_last(node: DOMNode, group: str, work: partial[Coroutine[Any, Any, None]]) -> None:
    """Run work in place of earlier work of the same group.

    A partial leaves no coroutine unawaited if the work never starts. Textual 8.2 accepts partials,
    but its types do not. Remove when they do.
    """
    node.run_worker(work, group=group, exclusive=True)  # type: ignore[arg-type]


def call_once(
    pump: MessagePump, delay_s: float, callback: Callable[[], Awaitable[None] | None]
) -> Timer:
    """Call a function once after a delay, even if the process was suspended meanwhile.

    Textual 8.2 never calls it if the process is delayed while the timer starts. Remove when it
    does.
    """
    timer = pump.set_timer(delay_s, callback)
    timer._skip = False  # the timer's task has not read it yet
    return timer


def notify_desktop(app: App[Any]) -> None:
    """Ring the bell and show a notification in terminals that can (OSC 9, OSC 777).

    Textual 8.2 writes only its own sequences. Remove when it can notify the desktop.
    """
    app.bell()
    driver = app._driver
    if driver is not None and not app.is_headless and not is_console():
        driver.write(
            "\x1b]9;jalopy: the answer is ready\x1b\\"
            "\x1b]777;notify;jalopy;the answer is ready\x1b\\"
        )
        driver.flush()


class Options(OptionList):
    """List of options for any size. Textual 8.2 ends the program if no option fits.

    Remove when it does not.
    """

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of the options in the width, or in a least width if it is 0."""
        return super().get_content_height(container, viewport, max(width, LEAST_OPTION_COLUMNS))

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        """Move by a page, if the cursor's line is known."""
        if (self.highlighted or 0) in self._index_to_line:
            super()._move_page(direction)


def dismiss_once(screen: Screen[Any], result: object = None) -> None:
    """Close a screen, unless it is closed already.

    Textual 8.2 also closes the screen below, or fails if there is none, when a second key follows
    before the first one is handled. Remove when it does not.
    """
    if screen.is_active:
        screen.dismiss(result)


def drop_bindings(widget: DOMNode, keys: Iterable[str]) -> None:
    """Remove keys from a widget that the user has assigned to other actions.

    Textual 8.2 asks the focused widget's bindings first, and those of ``TextArea`` have no ids to
    remap. Remove when they have.
    """
    for key in keys:
        widget._bindings.key_to_bindings.pop(key, None)

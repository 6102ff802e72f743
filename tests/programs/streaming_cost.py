"""Cost of streaming for the interface, without an engine: ``python -m tests.programs.streaming_cost``.

The real chat, headless, over the scripted engine. A reply that is long already grows by one drain's
worth of text at a time; printed is the processor time of a drain with all that follows from it, and
how many widgets there are. At ten drains a second, 1 ms is 1 % of one core.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

from app.tui.chat.events import DRAIN_PERIOD_S
from app.tui.widgets.message_view import ReplyView
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script

DRAIN_CHARS = 8
"""Two tokens, as at twenty tokens a second."""
MEASURED_DRAINS = 50
_PROSE = (
    "A moving bicycle steers **into** the fall: the `front` wheel turns to the side it leans to. "
)
_CODE = "    restoring = speed * speed * trail / height  # flex of the frame\n"
_ITEM = "- the *fork* alone, at 25 km/h and more\n"
_TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"
_MIXED = f"## Head\n\n{_PROSE * 3}\n\n{_ITEM * 4}\n```python\n{_CODE * 5}```\n\n{_TABLE}\n"
TEXTS = {
    "prose": "\n\n".join([_PROSE * 4] * 40),
    "mixed Markdown": _MIXED * 20,
    "one long fence": "```python\n" + _CODE * 200,
    "one long list": _ITEM * 300,
    "thinking": "<think>\n" + _PROSE * 100,
}


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), DRAIN_CHARS):
        yield text[start : start + DRAIN_CHARS]


async def fill(driver: Driver, n_turns: int) -> None:
    """Have a conversation of a number of turns, each with a Markdown reply."""
    driver.script.replies = [[_MIXED]]
    for number in range(n_turns):
        await driver.ask(f"question {number}")


async def cost_of_drains(driver: Driver, text: str) -> tuple[float, float]:
    """Let a reply grow; returns mean and worst processor milliseconds of a drain."""
    is_thought = text.startswith("<think>")
    view = driver.transcript.add(ReplyView())
    await driver.pilot.pause()
    reply = text.removeprefix("<think>\n")
    grow = view.think if is_thought else view.body.append
    half = len(reply) // 2
    grow(reply[:half])
    await asyncio.sleep(1.0)
    costs_ms = []
    for number, piece in enumerate(pieces(reply[half:])):
        if number >= MEASURED_DRAINS:
            break
        started_s = time.process_time()
        grow(piece)
        # Not the pilot's pause: that asks every widget, and would be most of what is measured.
        await asyncio.sleep(DRAIN_PERIOD_S)
        costs_ms.append((time.process_time() - started_s) * 1000)
    await view.remove()
    return sum(costs_ms) / len(costs_ms), max(costs_ms)


async def measure(n_turns: int) -> None:
    async with chatting(Script(n_ctx=1 << 20)) as driver:
        await fill(driver, n_turns)
        gc.collect()
        gc.freeze()
        n_widgets = len(driver.transcript.query("*"))
        for name, text in TEXTS.items():
            mean_ms, worst_ms = await cost_of_drains(driver, text)
            print(
                f"{n_turns:>6} {n_widgets:>8}  {name:<16} {mean_ms:>6.1f} {worst_ms:>6.1f}",
                flush=True,
            )


def main() -> None:
    print(
        f"{'turns':>6} {'widgets':>8}  {'text':<16} {'mean':>6} {'worst':>6}  ms of processor time "
        "per drain"
    )
    for n_turns in (0, 10, 50, 200):
        asyncio.run(measure(n_turns))


if __name__ == "__main__":
    main()

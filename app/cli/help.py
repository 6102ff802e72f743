"""``jalopy help``: the manual's topics, and what it says on one."""

from __future__ import annotations

from app.program import exit_codes
from app.program.manual import page, topics
from app.program.settings import Settings
from app.text.record import record


@record
class HelpOptions:
    """Arguments of ``help``."""

    topic: str | None = None


def help(options: HelpOptions, settings: Settings) -> int:
    """Print a page, or list them."""
    if options.topic is not None:
        print(page(options.topic), flush=True)
    else:
        print(f"jalopy help TOPIC, where TOPIC is: {', '.join(topics())}; jalopy --help lists the commands", flush=True)
    return exit_codes.OK

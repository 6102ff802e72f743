"""``jalopy help``: the manual's topics, and what it says on one."""

from app.program import exit_codes
from app.program.manual import page, topics


def help(topic: str | None = None) -> int:
    """Print a page, or list them."""
    if topic is not None:
        print(page(topic), flush=True)
    else:
        print(f"jalopy help TOPIC, where TOPIC is: {', '.join(topics())}; jalopy --help lists the commands", flush=True)
    return exit_codes.OK

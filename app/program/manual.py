"""The manual: one page of text for each topic, for ``jalopy help TOPIC`` and ``/help TOPIC``."""

from __future__ import annotations

import difflib
from pathlib import Path

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.small_file import read_text
from app.text.clean_text import clean_line

_FOLDER = Path(__file__).resolve().parents[1] / "manual"


def topics() -> list[str]:
    """Return the names of all topics."""
    return sorted(path.stem for path in _FOLDER.glob("*.txt"))


def page(topic: str) -> str:
    """Return the page of a topic. Raises Refusal: there is no such topic."""
    names = topics()
    if topic.lower() not in names:
        matches = difflib.get_close_matches(topic.lower(), names, n=1, cutoff=0.0)
        if matches:
            nearest = f" (nearest: {matches[0]})"
        else:
            nearest = ""
        raise Refusal(
            f"the manual has no topic {clean_line(topic, 40)!r}{nearest}; "
            f"it has: {', '.join(names)}"
        )
    text = read_text(_FOLDER / f"{topic.lower()}.txt", "manual page").rstrip()
    # a module import would delay the first frame
    from app.program.installing import (
        install_command,
    )

    text = text.replace("{install keyring}", install_command("keyring"))
    return text.replace("{files}", paths.file_table())


def help(topic: str | None = None) -> int:
    """Print a page, or the list of topics."""
    if topic is not None:
        print(page(topic), flush=True)
    else:
        print(
            (
                f"jalopy help TOPIC, where TOPIC is: {', '.join(topics())}; "
                "jalopy --help lists the commands"
            ),
            flush=True,
        )
    return exit_codes.OK

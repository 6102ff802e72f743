"""``jalopy sessions``: the saved conversations. No Textual, no engine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from app.cli.import_sessions import import_files
from app.conversations import rows
from app.conversations.look import Hit, Look
from app.conversations.store import Store
from app.program import exit_codes
from app.program.settings import Settings
from app.text.figures import counted, size
from app.text.json_line import json_line
from app.text.record import record

MOST_COLUMNS = 120


@record
class SessionsOptions:
    """Arguments of ``sessions``."""

    words: Sequence[str] = ()
    as_json: bool = False


def sessions(options: SessionsOptions, _: Settings | None = None) -> int:
    """Find and print; ``import FILE ...`` takes conversations over.

    Raises:
        Refusal: a file that is to be imported cannot be used.
    """
    if len(options.words) > 1 and options.words[0] == "import":
        return import_files(options.words[1:])
    hits = Look(Store(), " ".join(options.words)).run().hits
    if options.as_json:
        print(json_line({"conversations": [_values(hit) for hit in hits]}, indent=1), flush=True)
    else:
        print("\n".join(_lines(hits, bool(options.words))), flush=True)
    return exit_codes.OK


def _lines(hits: Sequence[Hit], is_search: bool) -> list[str]:
    if not hits:
        return ["No conversation has these words." if is_search else "No conversation is saved."]
    columns = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
    lines = ["number  " + rows.heading(columns - 8)]
    for hit in hits:
        lines.append(f"{int(hit.entry.id):>6}  {rows.row(hit, columns - 8)}")
        if hit.snippet:
            lines.append(f"        ... {hit.snippet[: max(20, columns - 16)]} ...")
    log_bytes = sum(hit.entry.log_bytes for hit in hits)
    state_bytes = Store().state_bytes(hit.entry.id for hit in hits)
    shown = counted(len(hits), "conversation")
    lines += ["", f"{shown}: text {size(log_bytes)}, saved states {size(state_bytes)}"]
    return lines


def _values(hit: Hit) -> dict[str, Any]:
    entry = hit.entry
    values: dict[str, Any] = {"id": entry.id, **asdict(entry.summary)}
    values |= {"log_bytes": entry.log_bytes, "state_bytes": entry.state_bytes}
    return values | {"snippet": hit.snippet, "trouble": entry.trouble}

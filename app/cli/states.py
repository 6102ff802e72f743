"""``jalopy states``: what was read once and is kept, and dropping some of it.

No Textual, no model.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from app.conversations.state_files import kinds, model_name, saved_files
from app.conversations.store import Store
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, size
from app.text.glyphs import cut
from app.text.json_line import json_line

if TYPE_CHECKING:
    from engine.saved_state import Prefix, SegmentFile

_DAY_S = 86400.0
_MOST_COLUMNS = 120
_MODEL_COLUMNS = 20
_LEAST_WORDS = 16


def states(
    settings: Settings,
    action: str = "",
    older: float | None = None,
    to: int | None = None,
    all: bool = False,
    as_json: bool = False,
) -> int:
    """List or prune: what was used longer ago than ``older`` days, down to a size in bytes, or
    everything."""
    store = Store()
    quota_bytes = settings.kv_states_quota_bytes
    files = saved_files()
    n_bytes = sum(file.n_bytes for file in files)
    if action:
        if to is None:
            wanted_bytes = quota_bytes
        else:
            wanted_bytes = to
        _prune(files, older, 0 if all else wanted_bytes)
    elif older is not None or to is not None or all:
        raise Refusal("jalopy states: these options say what to delete (jalopy states prune ...)")
    elif as_json:
        print(
            json_line(
                {"states": _rows(store), "bytes": n_bytes, "quota_bytes": quota_bytes}, indent=1
            )
        )
    else:
        print("\n".join(_lines(_rows(store), n_bytes, quota_bytes)))
    return exit_codes.OK


def _prune(files: Sequence[SegmentFile], older_days: float | None, kept_bytes: int) -> None:
    from engine.saved_state import drop_stored  # NumPy

    n_bytes = sum(file.n_bytes for file in files)
    if older_days is not None:
        before_s = time.time() - older_days * _DAY_S
        files = [file for file in files if file.used_s < before_s]
        kept_bytes = 0
    dropped_bytes = drop_stored(files, n_bytes - kept_bytes)
    print(
        f"deleted {size(dropped_bytes)}; {size(n_bytes - dropped_bytes)} of saved states are left"
    )


def _rows(store: Store) -> list[dict[str, Any]]:
    from engine.saved_state import prefixes_in  # NumPy

    titles = {
        path: entry.title for entry in store.entries() for path in store.segments(entry.id)
    }  # of shared ones any will do: the end belongs to one
    found: list[tuple[str, Prefix]] = [
        (model_name(place), one) for place in kinds() for one in prefixes_in(place)
    ]
    found.sort(key=lambda pair: -pair[1].used_s)
    return [
        {
            "model": model,
            "tokens": one.n_tokens,
            "bytes": one.n_bytes,
            "shared_bytes": one.shared_bytes,
            "last_used": _moment(one.used_s),
            "title": clean_line(titles.get(one.stored[0].path, ""), 200),
        }
        for model, one in found
    ]


def _moment(used_s: float) -> str:
    try:
        return datetime.fromtimestamp(used_s).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):  # a file's time may be anything
        return ""


def _lines(rows: list[dict[str, Any]], n_bytes: int, quota_bytes: int) -> list[str]:
    if not n_bytes:
        return ["No state is saved."]
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    table = [("tokens", "size", "shared", "last used", "model", "begins with")]
    for row in rows:
        if row["shared_bytes"]:
            shared = size(row["shared_bytes"])
        else:
            shared = ""
        moment = row["last_used"][:16].replace("T", " ")
        table.append(
            (count(row["tokens"]), size(row["bytes"]), shared, moment, row["model"], row["title"])
        )
    lines = []
    for tokens, n, shared, moment, model, title in table:
        line = (
            f"{tokens:>8} {n:>6} {shared:>6}  {moment:<16}  "
            f"{cut(model, _MODEL_COLUMNS):<{_MODEL_COLUMNS}}  "
        )
        lines.append((line + cut(title, max(_LEAST_WORDS, columns - len(line)))).rstrip())
    if len(rows) == 1:
        noun = "prefix"
    else:
        noun = "prefixes"
    return [
        *lines,
        "",
        f"{len(rows)} {noun}: {size(n_bytes)} of {size(quota_bytes)} that they may take",
    ]

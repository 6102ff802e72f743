"""``jalopy states``: list or delete the saved states of text that models have read."""

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
_MAX_COLUMNS = 120
_MODEL_COLUMNS = 20
_MIN_TITLE_COLUMNS = 16


def states(
    settings: Settings,
    action: str = "",
    older: float | None = None,
    to: int | None = None,
    all: bool = False,
    as_json: bool = False,
) -> int:
    """List saved states, or delete some.

    Args:
        action: "prune" to delete; "" to list.
        older: delete states that were not used for this many days.
        to: delete the least recently used states down to this size in bytes.
        all: delete every state.
    """
    store = Store()
    quota_bytes = settings.kv_states_quota_bytes
    files = saved_files()
    n_bytes = sum(file.n_bytes for file in files)
    if action:
        limit_bytes = quota_bytes
        if to is not None:
            limit_bytes = to
        if all:
            limit_bytes = 0
        _prune(files, older, limit_bytes)
    elif older is not None or to is not None or all:
        raise Refusal("jalopy states: these options need prune (jalopy states prune ...)")
    elif as_json:
        print(
            json_line(
                {"states": _rows(store), "bytes": n_bytes, "quota_bytes": quota_bytes}, indent=1
            )
        )
    else:
        print("\n".join(_lines(_rows(store), n_bytes, quota_bytes)))
    return exit_codes.OK


def _prune(files: Sequence[SegmentFile], older_days: float | None, limit_bytes: int) -> None:
    from engine.saved_state import drop_stored  # NumPy

    n_bytes = sum(file.n_bytes for file in files)
    if older_days is not None:
        before_s = time.time() - older_days * _DAY_S
        files = [file for file in files if file.used_s < before_s]
        limit_bytes = 0
    deleted_bytes = drop_stored(files, n_bytes - limit_bytes)
    print(f"Deleted {size(deleted_bytes)}. Saved states now take {size(n_bytes - deleted_bytes)}.")


def _rows(store: Store) -> list[dict[str, Any]]:
    from engine.saved_state import prefixes_in  # NumPy

    titles = {
        path: entry.title for entry in store.entries() for path in store.segments(entry.id)
    }  # a prefix is named by its last segment, which one conversation has
    prefixes: list[tuple[str, Prefix]] = [
        (model_name(folder), prefix) for folder in kinds() for prefix in prefixes_in(folder)
    ]
    prefixes.sort(key=lambda pair: -pair[1].used_s)
    return [
        {
            "model": model,
            "tokens": prefix.n_tokens,
            "bytes": prefix.n_bytes,
            "shared_bytes": prefix.shared_bytes,
            "last_used": _moment(prefix.used_s),
            "title": clean_line(titles.get(prefix.stored[0].path, ""), 200),
        }
        for model, prefix in prefixes
    ]


def _moment(used_s: float) -> str:
    try:
        return datetime.fromtimestamp(used_s).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):  # the time of a file may be out of range
        return ""


def _lines(rows: list[dict[str, Any]], n_bytes: int, quota_bytes: int) -> list[str]:
    if not n_bytes:
        return ["No saved states."]
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size().columns)
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
        lines.append((line + cut(title, max(_MIN_TITLE_COLUMNS, columns - len(line)))).rstrip())
    if len(rows) == 1:
        noun = "prefix"
    else:
        noun = "prefixes"
    return [
        *lines,
        "",
        f"{len(rows)} {noun}: {size(n_bytes)} of at most {size(quota_bytes)}",
    ]

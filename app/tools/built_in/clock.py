"""Date and time, here or in another time zone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from typing import Any

from app.text.clean_text import clean_line
from app.tools.built_in.tool import BuiltInTool, ToolFailure, text_parameters
from app.tools.mcp.served_tools import ServedTool

_UTC = ("utc", "gmt", "z")
_DESCRIPTION = (
    "Returns the present date, day of the week and time, here or in a time zone such as Asia/Tokyo."
)


def date_and_time(zone: str, now: datetime) -> str:
    """Return a moment in words, in a time zone.

    Args:
        zone: A name such as "Asia/Tokyo", a city in such a name, or "" for the local time.
        now: The moment, with its time zone.

    Raises:
        ToolFailure: The time zone is not known.
    """
    name = ""
    if zone.strip():
        name, zone_info = _find_zone(zone)
        now = now.astimezone(zone_info)
    else:
        now = now.astimezone()
        name = now.tzname() or ""
    offset = now.strftime("%z")
    offset = f"UTC{offset[:3]}:{offset[3:5]}"
    zone_text = ", ".join(part for part in (clean_line(name, 60), offset) if part)
    week = now.isocalendar().week
    return (
        (
            f"{now:%A}, {now.day} {now:%B %Y} ({now:%Y-%m-%d}), {now:%H:%M:%S} ({zone_text}), "
            f"week {week}, day {now:%j} of the year"
        )
        .replace("day 0", "day ")
        .replace("day 0", "day ")
    )


def _find_zone(zone: str) -> tuple[str, tzinfo]:
    """Return the full name of a time zone, and the zone."""
    from zoneinfo import ZoneInfo, available_timezones

    zone_key = clean_line(zone.strip(), 60).casefold().replace(" ", "_")
    if zone_key in _UTC:
        return "UTC", timezone.utc
    names = available_timezones()
    by_name = {name.casefold(): name for name in names}
    name = by_name.get(zone_key)
    if name is None:
        cities = sorted(full for full in names if full.casefold().rpartition("/")[2] == zone_key)
        regions = [full for full in cities if full.partition("/")[0] in _REGIONS]
        name = next(iter(regions or cities), None)
    if name is None:
        raise ToolFailure(
            f"There is no time zone {clean_line(zone, 40)!r}. Use a name such as Europe/Berlin."
        )
    return name, ZoneInfo(name)


_REGIONS = ("Africa", "America", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
"""Parts of the world that begin the usual names; the others are older names."""


def clock_tools() -> list[BuiltInTool]:
    """Return the clock."""

    def run(arguments: Mapping[str, Any]) -> str:
        return date_and_time(str(arguments.get("timezone") or ""), datetime.now(timezone.utc))

    parameters = text_parameters({}, {"timezone": "Time zone; empty for the local time"})
    return [BuiltInTool(ServedTool("date_and_time", _DESCRIPTION, parameters), run)]

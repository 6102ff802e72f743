"""Groups of actions, in which help and palette show them."""

from __future__ import annotations

from app.tui.actions import ACTIONS

OTHER = "Program"
"""Group of actions that are in no other one."""
GROUPS = {
    "Chat": (
        "chat.new", "chat.private", "app.conversations", "chat.find", "app.outline",
        "chat.rename", "chat.tag", "chat.pin", "chat.fork", "chat.delete", "chat.save",
        "chat.system", "chat.persona", "chat.context", "chat.compact",
    ),
    "Answers": (
        "chat.regenerate", "chat.answers", "chat.branch", "chat.continue_reply", "chat.edit",
        "chat.copy", "chat.place", "chat.thinking", "chat.schema", "chat.tools", "chat.focus_older",
        "chat.focus_newer",
    ),
    "Files": (
        "chat.read", "chat.paste", "chat.detail", "chat.prompt", "app.documents", "chat.unfold",
        "chat.external_editor", "chat.take_back",
    ),
    "Model": ("app.models", "app.get", "chat.model", "chat.set", "chat.lora"),
    "Speed": (
        "app.performance", "chat.toggle_strip", "app.tune", "chat.threads", "app.doctor",
        "app.report",
    ),
    OTHER: (
        "app.settings", "app.theme", "app.help", "app.command_palette", "app.quit",
    ),
}  # fmt: skip
"""Ids of actions by group, in the order in which they are shown."""
_PLACES = {
    action_id: (number, group)
    for number, (group, action_id) in enumerate(
        (group, action_id) for group, action_ids in GROUPS.items() for action_id in action_ids
    )
}


def group_of(action_id: str) -> str:
    """Return the group of an action."""
    return _PLACES.get(action_id, (0, OTHER))[1]


def sorted_by_group(action_ids: list[str]) -> list[str]:
    """Return actions in the order of their groups; those in none are at the end."""
    return sorted(action_ids, key=lambda action_id: _PLACES.get(action_id, (len(ACTIONS), ""))[0])

"""Widgets: messages out, values in; no disk, no engine."""

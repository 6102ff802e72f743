"""Markdown as rows of styled text.

A reply is one widget that paints rows, not a widget for every paragraph, list item and table cell:
mounting and laying those out took more of a processor than all else the interface does while a
model decodes. Knows no widget.
"""

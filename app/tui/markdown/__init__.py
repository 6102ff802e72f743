"""Markdown as rows of styled text. This package has no widgets.

A reply is one widget that paints rows. A widget for each paragraph, list item and table cell would
cost more time than everything else that the interface does while a model decodes.
"""

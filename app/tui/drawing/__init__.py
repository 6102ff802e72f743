"""Panels, gauges, graphs and digits as lines of text with roles: what every screen is drawn with.

No widget.
"""

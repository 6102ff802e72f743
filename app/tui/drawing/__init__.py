"""Panels, gauges, graphs and digits as lines of text with roles. This package has no widgets."""

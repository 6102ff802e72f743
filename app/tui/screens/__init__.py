"""Screens: what is composed of which widgets, and what happens on which message."""

"""Saved conversations: a log for each, and what is built on it."""

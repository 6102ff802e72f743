"""Saved conversations: one database, and what is built on it."""

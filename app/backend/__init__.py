"""Backends that compute replies, in a thread of their own."""

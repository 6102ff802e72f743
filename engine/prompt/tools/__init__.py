"""Calls of tools in a model's replies: how each family of models writes them, and the table that
says which does."""

"""Dialects of the API: how each family of clients writes requests and reads replies."""

"""``jalopy compare``: this engine and installed ones on the same file, in turn."""

"""Tensors by name and address, checked, and where they lie in memory."""

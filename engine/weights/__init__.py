"""Tensors by name and address, checked, and where they are in memory."""

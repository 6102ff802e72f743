"""Tensors by name and address, and their places in memory."""

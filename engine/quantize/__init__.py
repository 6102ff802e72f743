"""Smaller weights: float32 rows to blocks, the types of mixtures, and rewritten files."""

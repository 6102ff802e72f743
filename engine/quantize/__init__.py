"""Weights made smaller: float32 rows to blocks, which types a mixture gives, and files
rewritten."""

"""Measures what the interface costs the engine, on any machine:
``python -m tests.programs.interface_bench MODEL``.

The real chat runs on a pseudo-terminal and is driven by keys; rounds of it alternate with
``jalopy bench``, so that a drifting machine hurts both alike.
"""

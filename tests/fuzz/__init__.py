"""Fuzzing as a command: ``python -m tests.fuzz TARGET --minutes N``.

``tests/README.md`` says more.
"""

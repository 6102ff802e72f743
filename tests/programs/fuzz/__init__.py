"""Fuzzing as a command: ``python -m tests.programs.fuzz TARGET --minutes N``.

``tests/README.md`` says more.
"""

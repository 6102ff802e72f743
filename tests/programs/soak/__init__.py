"""Long runs of the real chat on a pseudo-terminal: ``python -m tests.programs.soak --minutes N`` (see
``tests/README.md``)."""

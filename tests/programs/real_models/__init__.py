"""Tests with real, trained models: they run where the files are (tests/README.md says how they
come)."""

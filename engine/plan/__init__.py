"""Computation as a table of operations, and the threads that run it."""

"""The computation as a table of operations, and the threads that walk it."""

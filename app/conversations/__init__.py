"""Saved conversations: a log for each, and what is built on it.

The log is plain and append-only, and not a table in SQLite. One file is one conversation: deleting, locking, copying
and damage concern that one alone, ``flock`` on it holds for as long as it is open, and what any cut or flipped bit does
to it can be tried at every offset (``tests/app/conversations``). SQLite would give search by index; reading all logs
takes less than a second for thousands of turns, in a thread. It would cost an import, two more files whose loss loses
messages, and a repair that nobody can read.
"""

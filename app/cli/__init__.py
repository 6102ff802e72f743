"""Commands of the shell, the line mode, and the supervising process."""

"""Exit codes of the process; every path out of the program uses one of these."""

import signal

OK = 0
INTERNAL = 1
USAGE = 2
BAD_DATA = 65
UNREADABLE = 66
UNSUPPORTED = 69
NO_MEMORY = 71
IO_ERROR = 74
HANGUP = 129
INTERRUPTED = 130
TERMINATED = 143

BY_SIGNAL = {signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP, signal.SIGINT: INTERRUPTED}
"""Of signals that end the program in its own time."""

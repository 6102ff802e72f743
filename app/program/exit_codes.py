"""Exit codes of the program; every exit uses one of them."""

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
"""Exit codes for signals that end the program in an orderly way."""

"""Faults that are known and being mended: each is avoided or tolerated by one switch, and goes when its fault is gone.

False lets the long run do the thing, and fail on it.
"""

PASTES_HOLD_NO_ESCAPES = True
"""A paste with ESC in it can end early: what is pasted here has none."""
KEYS_ARE_ALL_UTF8 = True
"""Invalid UTF-8 can end the chat: none is typed here."""
KILL_MAY_LOSE_UNANSWERED = True
"""A message without a token of its reply may be missing after SIGKILL of the chat or of its parent."""
CHILD_MAY_OUTLIVE_SUPERVISOR = True
"""After SIGKILL of the parent the chat may stay; it is then ended by SIGKILL, and counted."""
OPEN_CONVERSATION_IS_KEPT = True
"""The conversation in the chat is not chosen for deletion."""

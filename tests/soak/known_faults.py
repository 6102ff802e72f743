"""Faults that are known and being mended: each is avoided or tolerated by one switch, and goes when its fault is gone.

False lets the long run do the thing, and fail on it.
"""

NOTES_CAN_BE_OUT_OF_SIGHT = True
"""After scrolling, with the end just in sight, notes come below it unseen: such a step then goes to the end itself."""

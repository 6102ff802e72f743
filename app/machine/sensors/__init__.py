"""Measurements while the program runs: the machine, the speed, the interface itself.

No widget, no engine.
"""

"""Measurements while the program runs: machine, speed and interface. No widget, no engine."""

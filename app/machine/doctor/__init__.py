"""Findings about machine, terminal and model that affect speed, each with a remedy.

No model is needed.
"""

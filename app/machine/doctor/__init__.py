"""Findings on machine, terminal and model that affect speed, each with a remedy.

Works without a model.
"""

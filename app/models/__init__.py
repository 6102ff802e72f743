"""Models: which are on this machine, which fit it, and downloads."""

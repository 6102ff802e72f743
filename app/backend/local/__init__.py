"""The engine of this machine as a backend."""

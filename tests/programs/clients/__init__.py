"""Real clients of the API, in an environment of their own: see ``__main__``."""

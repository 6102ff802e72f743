"""Agents for programming that talk to a real ``jalopy serve``: see ``__main__``."""

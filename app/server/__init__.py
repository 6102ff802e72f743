"""A local API that OpenAI's clients understand: ``jalopy serve``."""

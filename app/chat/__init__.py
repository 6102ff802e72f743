"""A conversation with an engine, without a screen."""

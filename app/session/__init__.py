"""A conversation with a model, without a screen."""

"""The starter model: how its training text, its vocabulary, its weights and its scores come
about."""

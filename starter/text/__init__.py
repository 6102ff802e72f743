"""The training text: one file per topic, each of which asks and answers; ``conversation`` strings
them together."""

"""The starter model: training text, vocabulary, training, export and evaluation."""

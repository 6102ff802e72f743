"""Tool calls in a model's replies: the formats of the model families, and the table of them."""

"""What this machine, this terminal and this model mean for speed, and what mends it. Works without a model."""

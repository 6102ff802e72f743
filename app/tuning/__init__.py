"""Which thread counts and memory options were chosen, and whether they still hold."""

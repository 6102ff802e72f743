"""Real servers of others, and what the program does with them."""

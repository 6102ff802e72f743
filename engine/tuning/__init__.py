"""The search for the best thread counts and memory options on an open session."""

"""The layers' memory: keys and values, context shifts, and the tokens they belong to."""

"""What layers remember: keys and values, their shifts, the tokens they belong to."""

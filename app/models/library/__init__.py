"""Models on this machine: where they are, what their headers say, whether they fit and how fast
they would be."""

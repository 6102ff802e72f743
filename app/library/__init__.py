"""Models on this machine: where they lie, what their headers say, whether they fit and how fast they would be."""

"""Memory need and expected speed of a model on this machine, kernel speed, and the kernel check."""

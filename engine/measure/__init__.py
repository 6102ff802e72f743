"""What a model would cost and reach on this machine: memory fit, kernel speed, kernel check."""

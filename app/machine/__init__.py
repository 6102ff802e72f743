"""What is measured while it runs: the machine, the speed, the interface itself. No widget, no engine."""

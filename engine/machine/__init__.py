"""What the engine asks of the operating system: processors, memory, pages, directories."""

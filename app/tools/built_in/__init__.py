"""Tools that come with the program. Each is a tool server without a process of its own."""

"""Queries of the operating system: processors, memory, pages, directories."""

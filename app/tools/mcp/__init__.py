"""Servers of tools that the user runs, by the Model Context Protocol over pipes: started, asked,
bounded, ended."""

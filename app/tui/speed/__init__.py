"""The lines and graphs of speed that the screen shows while a reply comes."""

"""Files that a message brings along: found, read within bounds, turned into text, cut into
passages. No screen."""

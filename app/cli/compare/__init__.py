"""``jalopy compare``: this engine and an installed llama-cpp-python on the same file, in turn."""

"""GGUF files: header, strings, parts, types, the map."""

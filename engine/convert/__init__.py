"""Conversion of Hugging Face models to GGUF files."""

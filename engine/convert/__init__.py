"""Models as Hugging Face keeps them, made into GGUF files."""

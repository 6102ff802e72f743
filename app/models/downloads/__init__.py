"""Getting a model, when somebody asks for it: from Hugging Face or an address, checked before it
gets its name."""

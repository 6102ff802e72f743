"""Downloads of models from Hugging Face or an address, checked before they get their final name."""

"""From logits to the next token, and when a reply ends."""

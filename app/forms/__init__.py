"""Answer forms (JSON schema, regular expression, grammar) and the sandbox that follows them."""

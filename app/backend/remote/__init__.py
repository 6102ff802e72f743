"""Backend for models of other programs: any server with OpenAI's API."""

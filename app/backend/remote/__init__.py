"""Models of other programs: any server that speaks the API of OpenAI, as a worker of the engine's
thread."""

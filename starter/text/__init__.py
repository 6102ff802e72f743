"""The training text: one file per topic; ``conversation`` joins topics to conversations."""

"""Data only: ``default.toml`` holds every setting with its default. A package, so that it travels in the wheel."""

"""One TOML file per colour theme; a file in this folder registers itself. ``app/tui/themes.py`` checks them."""

"""One TOML file per colour theme; a file in this folder registers itself. ``app/themes.py`` reads and checks them."""

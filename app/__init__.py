"""Jalopy, the terminal application: screens, line mode and commands around ``engine``.

See README.md next to this.
"""

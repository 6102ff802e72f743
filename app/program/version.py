"""The version of the installed program."""


def installed_version() -> str:
    """Return the version, or "unknown" where the program runs from a folder without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jalopy")
    except PackageNotFoundError:
        return "unknown"

"""Versions of the program and of its packages."""

from functools import cache


@cache
def installed_version(package: str = "jalopy") -> str:
    """Return the version of a package; "unknown" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

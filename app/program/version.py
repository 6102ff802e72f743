"""Versions of the installed program, and of packages that it runs on."""

from functools import cache


@cache
def installed_version(package: str = "jalopy") -> str:
    """Return a package's version, or "unknown" where it is not installed, as the program in a
    folder."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

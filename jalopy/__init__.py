"""The only package name of an installation; in a wheel, ``app``, ``engine`` and the others are in
this folder."""

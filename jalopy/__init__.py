"""The one name that an installation claims: ``app``, ``engine`` and the others lie in this folder
of the wheel."""

"""What coordination refuses, by kind. ``code`` is for programs, ``detail`` says what to do next."""

from __future__ import annotations

from django.db import OperationalError


class Refused(Exception):
    """A request that was understood and not done. Nothing has changed."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class NotFound(Refused):
    """No such thing, or not the caller's: the two are never told apart."""


class Conflict(Refused):
    """It exists, but its state does not allow this."""


class Invalid(Refused):
    """The request itself is wrong, and would be at any time."""


class CommitUnknown(OperationalError):
    """The database was lost during COMMIT: only the rows know whether it has happened.

    Who wrote what can be written twice without harm may try again; a run's owner leaves the run,
    which goes on from its rows, as after a crash.
    """


class Fenced(Exception):
    """The caller no longer owns the run: its epoch is over and it must write nothing more."""

"""The base of every error, and the two that belong to no part alone."""

from __future__ import annotations


class StepsError(Exception):
    """Base of every error raised by this library."""

    def __str__(self) -> str:
        """The message as written; KeyError would print its repr."""
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidSettingError(StepsError, ValueError):
    """An option was given a value that means nothing."""


class MissingExtraError(StepsError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'hybridagi-steps[{extra}]'")
        self.extra = extra

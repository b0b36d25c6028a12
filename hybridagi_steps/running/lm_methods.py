"""Names the method that a language model of one's own lacks; DSPy says only that one is missing."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import dspy

from hybridagi_steps.errors import InvalidSettingError


@contextmanager
def naming_missing_method() -> Generator[None]:
    """Say which class lacks which method when an LM in the block is asked in a way it cannot be.

    Raises:
        InvalidSettingError: In place of DSPy's NotImplementedError.
    """
    try:
        yield
    except NotImplementedError as error:
        if (missing := _missing_method(error)) is None:
            raise
        raise InvalidSettingError(
            f"{missing}() is missing: programs that run on the event loop ask an LM with "
            "`aforward`, those in a thread with `forward`."
        ) from error


def _missing_method(error: NotImplementedError) -> str | None:
    """Return the method of an LM that raised because nobody has written it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return None
    code, lm = last.tb_frame.f_code, last.tb_frame.f_locals.get("self")
    if code not in (dspy.BaseLM.forward.__code__, dspy.BaseLM.aforward.__code__):
        return None
    return f"{type(lm).__name__}.{code.co_name}"

"""Ids in paths: whatever was stored under some id can be asked for, slashes and line breaks too.

An id stands percent-encoded in the address; what follows it tells where it ends.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor


class AnyText(Convertor[str]):
    """Matches any text."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the text."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text."""
        return value


register_url_convertor("anything", AnyText())

SESSION = "/sessions/{session_id:anything}"
RUN = "/runs/{run_id:anything}"
SessionId = Annotated[str, Path(description="The session's id.")]
RunId = Annotated[str, Path(description="The run's id.")]

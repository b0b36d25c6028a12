"""What one call of a callable program says: a text, a message, or pieces as they come."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, cast

import anyio.to_thread
import dspy

from hybridagi_steps.errors import MessageError
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.exits import no_exit, without_exit
from hybridagi_steps.running.session_prompt import Messages
from hybridagi_steps.running.token_stream import Piece

_PROGRAM = "the program"
_END = object()


async def said(run: ActiveRun, program: Any, messages: Messages) -> Any:
    """Return what one call of a callable says: a text, a message, or pieces of either.

    Raises:
        MessageError: It gave something that is none of these.
    """
    with no_exit(_PROGRAM):
        if inspect.iscoroutinefunction(program) or inspect.isasyncgenfunction(program):
            given = program(messages)
        else:
            given = await _in_a_thread(run, partial(program, messages))
        if inspect.isawaitable(given):
            given = await given
        if hasattr(given, "__aiter__"):
            return await _put_together(run, program, cast("AsyncIterator[Any]", given))
        if hasattr(given, "__next__"):
            return await _put_together(run, program, _drawn(run, cast("Iterator[Any]", given)))
    return _answer(given)


async def _in_a_thread(run: ActiveRun, call: Any) -> Any:
    named = run.threads.named(without_exit(_PROGRAM, call))
    return await anyio.to_thread.run_sync(named, abandon_on_cancel=True)


async def _drawn(run: ActiveRun, pieces: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield what an iterator gives, drawn in a thread."""
    while (piece := await _in_a_thread(run, partial(next, pieces, _END))) is not _END:
        yield piece


async def _put_together(run: ActiveRun, program: Any, pieces: AsyncIterator[Any]) -> Any:
    """Show pieces as they come; return their text, or the message among them."""
    text: list[str] = []
    async for piece in pieces:
        if isinstance(piece, Mapping) and "role" in piece:
            return cast("Mapping[str, Any]", piece)
        content, reasoning = _parts(piece)
        text.append(content or "")
        run.piece(Piece((id(program), len(run.turn.messages)), content, reasoning, None))
    return "".join(text)


def _parts(piece: Any) -> tuple[str | None, str | None]:
    if isinstance(piece, str):
        return piece, None
    if isinstance(piece, Mapping):
        fields = cast("Mapping[str, Any]", piece)
        parts = fields.get("content"), fields.get("reasoning_content")
        if all(part is None or isinstance(part, str) for part in parts):
            return parts
    raise MessageError(f"the program yielded {_shown(piece)}; it yields texts, or one message.")


def _answer(given: Any) -> Any:
    """Return what can be read as an answer.

    Raises:
        MessageError: It cannot.
    """
    named = isinstance(given, Mapping | dspy.Example | tuple) or hasattr(given, "told_fields")
    if given is None or isinstance(given, str) or named:
        return cast("Any", given)
    raise MessageError(
        f"the program returned {_shown(given)}; return a text or a message, or yield pieces of "
        "text."
    )


def _shown(value: Any) -> str:
    return f"{value!r:.80} of type {type(value).__name__}"

"""Consent: who may say that a tool runs, and the wait for an answer.

The config's callable decides at once, later, or leaves it to `runner.answer_consent`, as a server
does whose user sits elsewhere. Whatever is not a clear yes is a no: an error, a timeout, silence.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.running.limits import Consent, ToolRequest
from hybridagi_steps.running.stopping import ProgramExitError, done_on, no_exit

DENIED = "the user did not allow this call."
_ANSWERS = {"allow": True, "deny": False}


class Consents:
    """The consents of one run.

    Args:
        consent: Decides; None allows everything.
        timeout_seconds: How long an answer is waited for.
        emit: Takes the events that ask and deny.
        failed: Takes what the callable raised.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        consent: Consent | None,
        timeout_seconds: float,
        emit: Callable[..., None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._run_id, self._session_id = run_id, session_id
        self._consent, self._timeout = consent, timeout_seconds
        self._emit, self._failed = emit, failed
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    def request(self, call_id: str, tool: str, arguments: dict[str, Any]) -> ToolRequest:
        """Return what is asked."""
        return ToolRequest(self._run_id, self._session_id, call_id, tool, arguments)

    async def allowed(self, request: ToolRequest) -> bool:
        """Return whether a tool may run, once that is known."""
        if self._consent is None:
            return True
        # Before the question is asked: the answer may come at once, from anywhere.
        waiting = self._waiting[request.call_id] = self._loop.create_future()
        self._emit(StepEventType.TOOL_AUTH_REQUIRED, data=_data(request))
        why = "denied"
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._decided(self._consent, request)
                allowed = await waiting if answer is None else answer
        except TimeoutError:
            allowed, why = False, "no answer in time"
        finally:
            self._waiting.pop(request.call_id, None)
        if not allowed:
            self._emit(StepEventType.TOOL_AUTH_DENIED, data={**_data(request), "why": why})
        return allowed

    def allowed_from_thread(self, request: ToolRequest) -> bool:
        """Do so from a program's thread; on the event loop itself nothing can be waited for."""
        if self._consent is None:
            return True
        if _running_loop() is self._loop:
            return self._allowed_now(self._consent, request)
        return done_on(self._loop, self.allowed(request))

    def _allowed_now(self, consent: Consent, request: ToolRequest) -> bool:
        """Return what is said at once; an answer that takes time is a no."""
        self._emit(StepEventType.TOOL_AUTH_REQUIRED, data=_data(request))
        answer: Any = None
        try:
            with no_exit("consent"):
                answer = consent(request)
        except (Exception, ProgramExitError) as error:
            self._failed("consent", error)
        why = "denied"
        if answer is None or inspect.isawaitable(answer):
            why = "called from a place that cannot wait for an answer; use the tool's acall"
        elif self._read(answer):
            return True
        if inspect.iscoroutine(answer):
            answer.close()
        self._emit(StepEventType.TOOL_AUTH_DENIED, data={**_data(request), "why": why})
        return False

    def answer(self, call_id: str, allowed: bool) -> bool:
        """Answer a question that waits, from any thread; return whether one did."""
        waiting = self._waiting.get(call_id)
        if waiting is None:
            return False
        self._loop.call_soon_threadsafe(partial(_settle, waiting, allowed=allowed))
        return True

    def close(self) -> None:
        """Answer what still waits with no: the run is over."""
        for waiting in list(self._waiting.values()):
            _settle(waiting, allowed=False)

    def _read(self, answer: Any) -> bool | None:
        """Return what an answer says; one that says nothing clear is a no, and is reported."""
        if answer is None or isinstance(answer, bool):
            return answer
        if isinstance(answer, str) and answer in _ANSWERS:
            return _ANSWERS[answer]
        problem = f"consent answered {answer!r:.80}; it answers True, False or None."
        self._failed("consent", InvalidSettingError(problem))
        return False

    async def _decided(self, consent: Consent, request: ToolRequest) -> bool | None:
        try:
            with no_exit("consent"):
                answer = consent(request)
                return self._read(await answer if inspect.isawaitable(answer) else answer)
        except TimeoutError:
            raise
        except (Exception, ProgramExitError) as error:
            self._failed("consent", error)
            return False


def _settle(waiting: asyncio.Future[bool], *, allowed: bool) -> None:
    if not waiting.done():
        waiting.set_result(allowed)


def _data(request: ToolRequest) -> dict[str, Any]:
    return {
        "call_id": request.call_id,
        "tool": request.tool,
        "arguments": request.arguments,
    }


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

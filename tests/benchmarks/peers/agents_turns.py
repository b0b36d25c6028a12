"""The OpenAI Agents SDK: `Runner.run` with a `SQLiteSession` and a model that answers at once.

The session's connections are in WAL with synchronous NORMAL, as ours are, which it does not
document; traces, which would be sent somewhere, are off.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from tests.benchmarks.peers import answered
from tests.benchmarks.peers.agents_session import Session


class _Answering(Model):
    """Answers with how much it was sent."""

    async def get_response(self, *_: Any, **given: Any) -> Any:
        text = ResponseOutputText(
            text=answered(len(given["input"])), type="output_text", annotations=[]
        )
        said = ResponseOutputMessage(
            id="m", role="assistant", status="completed", type="message", content=[text]
        )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("turns are measured whole, not streamed")


class AgentsTalker:
    """One session object for each session; turns are awaited in one event loop that stays open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sessions.db"
        self._agent = Agent(name="answers", model=_Answering())
        self._config = RunConfig(tracing_disabled=True)
        self._loop = asyncio.Runner()
        self._sessions: dict[str, Session] = {}
        self.settings = self._session("settings").settings()

    def begin(self, session: str, said: Sequence[str]) -> None:
        """Add items in one transaction."""
        roles = ("user", "assistant")
        items: Any = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
        self._loop.run(self._session(session).add_items(items))

    def turn(self, session: str, message: str) -> str:
        """Run the agent once."""
        result = self._loop.run(
            Runner.run(
                self._agent, message, session=self._session(session), run_config=self._config
            )
        )
        return str(result.final_output)

    def close(self) -> None:
        """Close all sessions and the event loop."""
        for session in self._sessions.values():
            session.close()
        self._loop.close()

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            self._sessions[name] = Session(name, self._path, "normal")
        return self._sessions[name]

"""What the server says of sessions and runs: whose steps are recalled, what a kill has left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

from server_cases import Served, fill, serving

from hybridagi_steps import AgentStep, StepMemory


@pytest.fixture
def served(memory: StepMemory) -> Iterator[Served]:
    """A server over a session, a run, and a step of another session."""
    fill(memory)
    with serving(memory) as running:
        yield running


def test_a_context_recalls_other_sessions_only_when_asked(
    served: Served, memory: StepMemory
) -> None:
    for session_id, result in (("talk", "by bank transfer"), ("other", "as a voucher")):
        inputs = {"purpose": "refund a ticket", "tool": "refund", "arguments": {}}
        step = {"step_type": "Action", "inputs": inputs, "outputs": {"result": result}}
        memory.add(AgentStep.model_validate({**step, "session_id": session_id}))
    path = "/sessions/talk/context"
    own = served.client.get(path).text
    assert "bank transfer" in own
    assert "voucher" not in own
    assert served.client.get(path, params={"recall": "session"}).text == own
    everything = served.client.get(path, params={"recall": "all"}).text
    assert "bank transfer" in everything
    assert "voucher" in everything
    assert served.client.get(path, params={"recall": "none"}).status_code == 422
    served.client.post("/sessions/talk/fork", json={"sequence": 2, "new_session_id": "b"})
    assert "voucher" not in served.client.get("/sessions/b/context").text

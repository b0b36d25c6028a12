"""What the server says of sessions and runs: whose steps are recalled, what a kill has left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

from server_cases import Served, echo, fill, problem, serving

from hybridagi_steps import AgentStep, Step, StepMemory, errors
from hybridagi_steps.server.routes.sessions import as_html
from hybridagi_steps.server.schemas import WholeRun
from hybridagi_steps.stores.body import MAX_STEP_BYTES


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
        inputs: dict[str, Any] = {"purpose": "refund a ticket", "tool": "refund", "arguments": {}}
        step: dict[str, Any] = {
            "step_type": "Action",
            "inputs": inputs,
            "outputs": {"result": result},
        }
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


def test_a_context_searches_for_what_it_is_asked_to(served: Served, memory: StepMemory) -> None:
    state: dict[str, Any] = {"purpose": "look up the booking", "tool": "lookup", "arguments": {}}
    then: dict[str, Any] = {"purpose": "waive the fee", "tool": "waive", "arguments": {}}
    for run, inputs in enumerate((state, then)):
        step: dict[str, Any] = {
            "step_type": "Action",
            "inputs": inputs,
            "run_id": "past",
            "hop": run,
        }
        memory.add(AgentStep.model_validate({**step, "outputs": {"result": "done"}}))
    path, params = "/sessions/talk/context", {"recall": "all", "query": "look up the booking"}
    plain = served.client.get(path, params=params)
    assert plain.json()["receipt"]["notes"] == []
    told = served.client.get(path, params={**params, "aim": "next"}).json()["receipt"]["notes"]
    assert any("no step is recorded of this conversation yet" in note for note in told)
    here: dict[str, Any] = {"step_type": "Action", "inputs": state, "outputs": {"result": "done"}}
    memory.add(AgentStep.model_validate({**here, "id": "here", "run_id": "now"}))
    shows = {"role": "assistant", "content": "It is booked.", "agent_step_id": "here"}
    asyncio.run(memory.repository().append("talk", [shows]))
    found = served.client.get(path, params={**params, "aim": "next", "recent": 1}).json()
    assert found["receipt"]["notes"] == []
    assert "waive the fee" in str(found["messages"])
    for aim in ("tool", "episode"):
        assert served.client.get(path, params={**params, "aim": aim}).status_code == 200
    problem(served.client.get(path, params={**params, "aim": "soon"}), 422)


def test_a_run_that_a_kill_cut_off_is_there_without_steps(
    served: Served, memory: StepMemory
) -> None:
    said = {"role": "user", "content": "go", "run_id": "cut"}
    message = Step.model_validate({**said, "session_id": "two"})
    asyncio.run(memory.repository().append("two", [message]))
    found = served.client.get("/runs/cut").json()
    assert (found["run"]["session_id"], found["run"]["status"]) == ("two", "interrupted")
    assert (found["steps"], found["live"]) == ([], False)
    assert found["run"]["started_at"] == found["run"]["ended_at"] != ""
    WholeRun.model_validate(found)
    assert served.events("cut")[-1].kind == "run_failed"
    stopped = served.client.post("/runs/cut/cancel").json()
    assert stopped == {"run_id": "cut", "cancelled": False}
    assert served.client.get("/runs/run-1").json()["run"]["status"] == "failed"
    problem(served.client.get("/runs/none"), 404)


def test_a_fork_beyond_the_end_names_the_session_asked(served: Served) -> None:
    for body in ({"sequence": 9}, {"sequence": 9, "new_session_id": "b"}):
        told = problem(served.client.post("/sessions/talk/fork", json=body), 404)
        assert told["detail"] == "session 'talk' has the messages 1 to 4; there is no 9."


@pytest.mark.parametrize("sequence", [True, "1", 1.5])
@pytest.mark.parametrize("action", ["fork", "retry"])
def test_a_sequence_is_a_number_and_nothing_like_it(
    served: Served, action: str, sequence: object
) -> None:
    answer = served.client.post(f"/sessions/talk/{action}", json={"sequence": sequence})
    assert problem(answer, 422)["errors"][0]["field"] == "body.sequence"


@pytest.mark.parametrize("sequence", ["2", "2.0", "2e0"])
def test_a_sequence_is_an_integer_however_it_is_written(served: Served, sequence: str) -> None:
    headers = {"Content-Type": "application/json"}
    body = f'{{"sequence": {sequence}}}'
    made = served.client.post("/sessions/talk/fork", content=body, headers=headers)
    assert made.json()["sequence"] == 2


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"sequence": "\xff"}', 400, "not UTF-8 at byte 15"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"sequence": ' + b"1" * 5_000 + b"}", 400, "more than 4,300 digits"),
        (b'{"sequence":\n 1,}', 422, "not JSON at line 2, column 4: "),
    ],
    ids=["encoding", "depth", "digits", "syntax"],
)
def test_a_body_that_cannot_be_read_is_told_why(
    served: Served, body: bytes, status: int, said: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served.client.post("/sessions/talk/fork", content=body, headers=headers)
    assert said in problem(answer, status)["detail"]


def test_an_unknown_run_names_the_route_that_lists_them(served: Served) -> None:
    for path in ("/runs/none", "/runs/none/events"):
        told = problem(served.client.get(path), 404)
        assert told["detail"] == "no run has the id 'none'; GET /runs lists them."
        assert told["error"] == "UnknownRunError"


def test_an_id_is_as_long_as_the_store_takes(served: Served) -> None:
    path = "/sessions/talk/fork"
    longest = {"sequence": 1, "new_session_id": "x" * 128}
    assert served.client.post(path, json=longest).status_code == 200
    longer = {"sequence": 1, "new_session_id": "y" * 129}
    told = problem(served.client.post(path, json=longer), 422)
    assert told["errors"][0]["field"] == "body.new_session_id"
    body = {"session_id": "y" * 129, "message": "hi"}
    told = problem(served.client.post("/chat/stream/v2", json=body), 422)
    assert told["errors"][0]["field"] == "body.session_id"


def test_an_event_beyond_the_end_is_no_empty_stream(memory: StepMemory) -> None:
    with serving(memory, echo) as running:
        run_id = running.chat("one", "hi")[0].data["run_id"]
        headers = {"Last-Event-ID": f"{run_id}:999999"}
        problem(running.client.get(f"/runs/{run_id}/events", headers=headers), 422)
    with serving(memory, echo) as again:
        assert again.events(run_id, f"{run_id}:999999")[-1].kind == "run_completed"


def test_a_branch_that_is_none_is_404(served: Served) -> None:
    (own,) = served.client.get("/sessions/talk/attempts").json()["attempts"]
    for a, b in ((own["branch_id"], 999), (999, own["branch_id"]), (998, 999)):
        asked = served.client.get(f"/sessions/talk/compare?branch_a={a}&branch_b={b}")
        assert "has no branch 99" in problem(asked, 404)["detail"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_does_not_say_it_is_json_is_415(served: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    body = b'{"sequence": 2}'
    asked = served.client.post("/sessions/talk/fork", content=body, headers=headers)
    detail = problem(asked, 415)["detail"]
    assert "send Content-Type: application/json" in detail
    assert kind is None or kind in detail
    for right in ("application/json", "application/json; charset=utf-8", "application/x+json"):
        headers = {"Content-Type": right}
        asked = served.client.post("/sessions/talk/fork", content=body, headers=headers)
        assert asked.status_code == 200
    asked = served.client.post("/sessions/talk/fork", content=b"{", headers=headers)
    problem(asked, 422)


@pytest.mark.parametrize("session_id", [".", ".."])
def test_an_id_that_browsers_take_out_of_an_address_is_refused(
    memory: StepMemory, session_id: str
) -> None:
    asyncio.run(memory.repository().append("talk", {"role": "user", "content": "Hello"}))
    with serving(memory, echo) as served:
        body = {"session_id": session_id, "message": "Hello"}
        found = problem(served.client.post("/chat/stream/v2", json=body), 422)
        assert found["errors"][0]["field"] == "body.session_id"
        body = {"sequence": 1, "new_session_id": session_id}
        problem(served.client.post("/sessions/talk/fork", json=body), 422)
        assert served.chat("...", "Hello")[-1].kind == "run_completed"


def test_the_time_of_a_run_is_its_own(served: Served, memory: StepMemory) -> None:
    def step(name: str, kind: str, within: str | None, taken: float | None = None) -> AgentStep:
        inputs = {"purpose": name, "program": name}
        metrics = None if taken is None else {"duration_ms": taken, "input_tokens": 10}
        fields = {"id": name, "step_type": kind, "program_id": within, "metrics": metrics}
        return AgentStep.model_validate({**fields, "run_id": "nested", "inputs": inputs})

    memory.add(
        [
            step("nested-outer", "ProgramCall", None),
            step("nested-inner", "ProgramCall", "nested-outer"),
            step("nested-act", "Action", "nested-inner", 600),
            step("inner-end", "ProgramEnd", "nested-inner", 900),
            step("outer-end", "ProgramEnd", "nested-outer", 1_000),
            step("alone", "Action", None, 200),
        ]
    )
    metrics = served.client.get("/runs/nested").json()["metrics"]
    assert (metrics["duration_ms"], metrics["input_tokens"]) == (1_200, 40)


def test_a_run_is_judged_by_how_its_like_ended(served: Served, memory: StepMemory) -> None:
    for number in range(10):
        cancels = number % 2
        inputs: dict[str, Any] = {
            "purpose": f"customer {number} wants money back",
            "tool": "cancel" if cancels else "refund",
            "arguments": {"booking": number},
        }
        outputs = {"result": "Error: too late" if cancels else "done"}
        step = {"id": f"s{number}", "run_id": f"past-{number}", "step_type": "Action"}
        memory.add(AgentStep.model_validate({**step, "inputs": inputs, "outputs": outputs}))
        memory.score(f"past-{number}", 1.0 - cancels)
    found = served.client.get("/runs/past-1/outlook").json()
    assert (found["run_id"], found["chance"]) == ("past-1", 0.0)
    assert found["lowest"] == [
        {"step_id": "s1", "hop": 0, "action": "cancel", "chance": 0.0, "well": 0, "scored": 4}
    ]
    assert found["first_trouble"] == {"step_id": "s1", "hop": 0, "said": "Error: too late"}
    assert found["loops"] == []
    assert "first_trouble" not in served.client.get("/runs/past-2/outlook").json()
    assert served.client.get("/runs/nowhere/outlook").status_code == 404


def test_only_other_pages_and_mails_are_links_in_what_was_said() -> None:
    for url in ("http://a.org", "HTTPS://a.org/x#y", "mailto:ann@a.org"):
        assert f'href="{url}"' in as_html(f"[x]({url})")
    for url in ("#token=x", "/sessions", "//a.org", "blob:x", "intent:x", "data:image/png,x"):
        assert "<a" not in as_html(f"[x]({url}) <{url}> ![x]({url}) [r]\n\n[r]: {url}")


def test_feedback_that_no_store_can_hold_is_refused(served: Served, memory: StepMemory) -> None:
    body = b'{"value": 1.0, "feedback": "\\ud800"}'
    headers = {"Content-Type": "application/json"}
    refused = served.client.post("/runs/run-1/score", content=body, headers=headers)
    assert refused.status_code == 422, refused.text
    for feedback in ("\ud800", "x" * (MAX_STEP_BYTES + 1)):
        with pytest.raises(errors.InvalidStepError, match="the feedback on run 'run-1'"):
            memory.score("run-1", 1.0, feedback)
    memory.score("run-1", 1.0, "fine")

"""`serve --ask`: no tool of any program runs before the reader has allowed it."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

from server_cases import Event, Served, problem, serving

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.server.program_loading import load_runner

PROGRAMS = '''
import hybridagi_steps as hs

paid = []

def pay(amount: str) -> str:
    """Pay."""
    paid.append(amount)
    return "paid " + amount

def model(name, **arguments):
    """Return a program that calls one tool, then says what came of it."""
    import json

    def program(messages):
        if messages[-1]["role"] == "tool":
            return "It said: " + messages[-1]["content"]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": "call-1", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return program

paying = model("pay", amount="5")
asking = model("expert", message="Pay, please.")

def plain(memory):
    return hs.StepRunner(paying, memory, tools=[pay])

def limited(memory):
    config = hs.StepRunnerConfig(max_steps=10)
    return hs.StepRunner(paying, memory, tools=[pay], config=config)

def nested(memory):
    return hs.StepRunner(asking, memory, tools=[plain(memory).as_tool("expert", "Pays")])

def deciding(memory):
    config = hs.StepRunnerConfig(consent=lambda request: True)
    return hs.StepRunner(paying, memory, tools=[pay], config=config)

class Fixed(hs.StepRunner):
    """Keeps its config to itself."""

    @property
    def config(self):
        return hs.StepRunnerConfig()

    @config.setter
    def config(self, config):
        pass

def fixed(memory):
    return Fixed(paying, memory, tools=[pay])
'''


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of programs, imported anew for each test."""
    import importlib
    import sys

    (tmp_path / "paying_programs.py").write_text(PROGRAMS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield importlib.import_module("paying_programs")
    del sys.modules["paying_programs"]


def talk(served: Served, *answers: bool) -> list[Event]:
    """Say something, answer what is waited for in turn; return the events."""
    events = served.chat("talk", "go")
    for answer in answers:
        [waits] = events[-1].data["data"]["waiting"]
        events = served.resume("talk", {waits["call_id"]: answer})
    return events


@pytest.mark.parametrize("name", ["plain", "limited"])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_runner_made_elsewhere_asks(
    memory: StepMemory, programs: Any, name: str, allowed: bool
) -> None:
    runner = load_runner(f"paying_programs:{name}", memory, ask_consent=True)
    with serving(memory, runner) as served:
        events = talk(served, allowed)
    assert programs.paid == (["5"] if allowed else [])
    assert events[-1].kind == "run_completed"
    assert runner.config.max_steps == (10 if name == "limited" else 30)


@pytest.mark.parametrize("value", [1, 0, 1.0, None, ["yes"], {"allowed": True}])
def test_consent_is_true_or_false_and_nothing_like_it(
    memory: StepMemory, programs: Any, value: object
) -> None:
    runner = load_runner("paying_programs:plain", memory, ask_consent=True)
    with serving(memory, runner) as served:
        [waits] = served.chat("talk", "go")[-1].data["data"]["waiting"]
        body = {"answers": {waits["call_id"]: value}}
        problem(served.client.post("/sessions/talk/resume", json=body), 422)
        assert programs.paid == []
        assert served.resume("talk", {waits["call_id"]: False})[-1].kind == "run_completed"
    assert programs.paid == []


def test_a_text_says_what_a_call_gave_and_does_not_run_it(
    memory: StepMemory, programs: Any
) -> None:
    runner = load_runner("paying_programs:plain", memory, ask_consent=True)
    with serving(memory, runner) as served:
        [waits] = served.chat("talk", "go")[-1].data["data"]["waiting"]
        events = served.resume("talk", {waits["call_id"]: "yes"})
    assert events[-1].kind == "run_completed"
    assert programs.paid == []


@pytest.mark.parametrize("allowed", [True, False])
def test_an_agent_inside_an_agent_asks_too(
    memory: StepMemory, programs: Any, allowed: bool
) -> None:
    runner = load_runner("paying_programs:nested", memory, ask_consent=True)
    with serving(memory, runner) as served:
        talk(served, True, allowed)
    assert programs.paid == (["5"] if allowed else [])


def test_without_ask_nobody_is_asked(memory: StepMemory, programs: Any) -> None:
    with serving(memory, load_runner("paying_programs:plain", memory)) as served:
        talk(served)
    assert programs.paid == ["5"]


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("name", "said"),
    [("deciding", "has a consent of its own"), ("fixed", "does not take another config")],
)
def test_what_cannot_be_made_to_ask_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    db = str(tmp_path / "steps.db")
    program = f"paying_programs:{name}"
    assert main(["serve", "--db", db, "--port", "0", "--program", program, "--ask"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "--ask" in error
    assert error.count("\n") == 1


def test_an_answer_after_the_end_is_a_conflict(memory: StepMemory, programs: Any) -> None:
    runner = load_runner("paying_programs:nested", memory, ask_consent=True)
    with serving(memory, runner) as served:
        talk(served, True, True)
        body = {"answers": {"call-1": True}}
        late = served.client.post("/sessions/talk/resume", json=body)
        assert (late.status_code, "nothing waits" in late.json()["detail"]) == (409, True)
        assert served.client.post("/sessions/talk/resume").status_code == 204

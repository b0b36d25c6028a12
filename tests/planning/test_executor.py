"""One step sees what it needs and nothing else, and ends only when it hands on what it promised."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import dspy
import pytest
from pydantic import BaseModel

from hybridagi_steps import errors
from hybridagi_steps.planning.comparison import compare
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.planning.step_prompts import INSTRUCTIONS, make_brief
from hybridagi_steps.planning.usage import (
    PLANNING,
    Ledger,
    LMCall,
    Purpose,
    TokenUsage,
    spending_on,
)
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.recording.usage import Usage
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall, request_text, scripted_lm
from hybridagi_steps.token_counters import CallableCounter, EstimatingCounter
from hybridagi_steps.workspace.workspace import Workspace

WORDS = CallableCounter(lambda text: len(text.split()), "words")


def finish(**artifacts: Any) -> ToolCall:
    return ToolCall("finish_step", {"summary": "done", "artifacts": artifacts})


def tool_answers(lm: ScriptedLM) -> list[str]:
    """Return what tools answered, as the last prompt shows it."""
    messages: Any = lm.requests[-1].messages
    return [each.parts[0].content[0].text for each in messages if each.role == "tool"]


def carried_out(lm: Any, executor: StepExecutor | None = None, **inputs: Any) -> Any:
    with dspy.context(lm=lm):
        return (executor or StepExecutor())(**{"requirement": "Sort the books.", **inputs})


def step(**fields: Any) -> PlanStep:
    return PlanStep(id="s", goal="The list is sorted.", **fields)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "books.txt").write_text("".join(f"book {n}\n" for n in range(100)))
    (folder / "other.txt").write_text("a secret of others\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    return Workspace(folder, state=tmp_path / "state")


def test_a_step_is_told_what_it_needs_and_nothing_else(workspace: Workspace) -> None:
    lm = scripted_lm([[finish(order=["a"])]])
    planned = step(
        description="By author.",
        files=["books.txt"],
        artifacts=["order"],
        shapes={"order": ["text"]},
        notes={"order": "titles"},
    )
    given = {"look.language": "German", "look.count": {"books": 100}}
    done = carried_out(lm, step=planned, artifacts=given, workspace=workspace)
    assert (done.summary, done.artifacts) == ("done", {"order": ["a"]})
    [request] = lm.requests
    told = request_text(request)
    for part in ("The list is sorted.", "By author.", "book 99", "German"):
        assert told.count(part) == 1
    assert '{"books": 100}' in told
    assert '- order: ["string"] (titles)' in told
    assert "secret" not in told
    assert request.system == f"{INSTRUCTIONS}\n\n# Requirement\nSort the books."
    assert len(request.messages) == 1
    names = [tool.name for tool in request.tools]
    assert names == ["read_file", "write_file", "list_files", "search_files", "finish_step"]


def test_what_does_not_fit_is_cut_and_named(workspace: Workspace) -> None:
    brief = make_brief(
        step(files=["books.txt", "picture.png"]), {}, workspace, counter=WORDS, file_tokens=20
    )
    assert "book 9\n" in brief.text
    assert "book 10" not in brief.text
    assert brief.cut == [
        "books.txt: lines 11 to 101, over the budget of 20 tokens",
        "picture.png: is no text",
    ]
    assert brief.cut[0] in brief.text


def test_a_step_may_name_a_file_that_it_will_write(workspace: Workspace) -> None:
    brief = make_brief(step(files=["new.txt"]), {}, workspace, counter=WORDS)
    assert brief.cut == ["new.txt: is not there yet"]
    with pytest.raises(errors.WorkspaceError, match=r"new\.txt"):
        make_brief(step(type="modify", files=["new.txt"]), {}, workspace, counter=WORDS)


def test_turns_stand_in_the_prompt_as_messages() -> None:
    def shelf(number: int) -> list[str]:
        """Return the books of a shelf."""
        return [f"shelf {number}"]

    lm = scripted_lm([["Let me look.", ToolCall("shelf", {"number": 3}, "call_abc")], [finish()]])
    carried_out(lm, StepExecutor([shelf]), step=step())
    messages: Any = lm.requests[1].messages
    said, answer = messages[1:]
    assert (said.role, said.parts[0].text) == ("assistant", "Let me look.")
    assert answer.role == "tool"
    assert answer.parts[0].id == "call_abc"
    assert json.loads(answer.parts[0].content[0].text) == ["shelf 3"]


def test_what_a_tool_says_wrong_goes_back_to_the_model() -> None:
    def shelf(number: int) -> str:
        """Return a shelf."""
        raise RuntimeError(f"shelf {number} fell down")

    lm = scripted_lm(
        [
            [ToolCall("shelf", {"number": 3})],
            [ToolCall("shelf", {})],
            [ToolCall("shelf", {"number": "many"})],
            [finish()],
        ]
    )
    carried_out(lm, StepExecutor([shelf]), step=step())
    said = tool_answers(lm)
    assert said[0] == "RuntimeError: shelf 3 fell down"
    assert said[1] == "ToolInputError: shelf needs number."
    assert "number" in said[2]


def test_an_asynchronous_tool_is_awaited() -> None:
    async def slow() -> str:
        """Be slow."""
        await asyncio.sleep(0.01)
        return "at last"

    lm = scripted_lm([[ToolCall("slow", {})], [finish()]])
    carried_out(lm, StepExecutor([slow]), step=step())
    assert tool_answers(lm) == ["at last"]


def test_artifacts_that_were_not_promised_as_they_are_are_sent_back() -> None:
    lm = scripted_lm([[finish()], [finish(n="3")], [finish(n=3, more=1)]])
    done = carried_out(lm, step=step(artifacts=["n"], shapes={"n": "integer"}))
    assert done.artifacts == {"n": 3}
    said = tool_answers(lm)
    assert "'n' is missing" in said[0]
    assert "wrong shape" in said[1]


def test_artifacts_are_checked_by_pattern_and_by_pydantic() -> None:
    class Book(BaseModel):
        title: str
        pages: int

    executor = StepExecutor(artifact_types={"book": Book})
    planned = step(artifacts=["book", "isbn"], shapes={"isbn": r"/\d{3}/"})
    good: dict[str, Any] = {"book": {"title": "t", "pages": 3}, "isbn": "123"}
    lm = scripted_lm(
        [
            [finish(**{**good, "isbn": "12"})],
            [finish(**{**good, "book": {"title": "t", "pages": "x"}})],
            [finish(**good)],
        ]
    )
    assert carried_out(lm, executor, step=planned).artifacts == good
    said = tool_answers(lm)
    assert "isbn" in said[0]
    assert "pages" in said[1]


def test_talk_without_calls_is_answered_and_then_given_up() -> None:
    lm = scripted_lm(["I think it is sorted.", [finish()]])
    carried_out(lm, step=step())
    assert "Call a tool" in request_text(lm.requests[1])
    with pytest.raises(errors.ArtifactError, match="sorted already"):
        carried_out(scripted_lm(["It is sorted already."] * 9), step=step())


def test_a_model_without_native_calls_writes_them_as_text() -> None:
    def answer(request: Any) -> Reply:
        assert not request.tools
        call = {"name": "finish_step", "args": {"summary": "by text", "artifacts": {}}}
        return {"thought": "done", "tool_calls": {"tool_calls": [call]}}

    class TextLM(ScriptedLM):
        """A model that knows no native calls."""

        @property
        def supports_function_calling(self) -> bool:
            return False

    assert carried_out(TextLM(answer), step=step()).summary == "by text"


def test_its_instructions_can_be_improved_and_saved(tmp_path: Path) -> None:
    executor = StepExecutor(system_context="Write Latin.")
    named: Any = executor.named_predictors()
    [(name, predictor)] = named
    assert name == "work"
    assert predictor.signature.instructions.endswith("Write Latin.")
    predictor.signature = predictor.signature.with_instructions("Do it well.")
    executor.save(tmp_path / "executor.json")
    again = StepExecutor()
    again.load(tmp_path / "executor.json")
    lm = scripted_lm([[finish()]])
    carried_out(lm, again, step=step())
    assert lm.requests[0].system == "Do it well.\n\n# Requirement\nSort the books."


def test_examples_of_an_optimiser_stand_before_the_brief() -> None:
    executor = StepExecutor()
    calls = dspy.ToolCalls.from_dict_list([{"name": "finish_step", "args": {"summary": "x"}}])
    executor.work.demos = [dspy.Example(brief="# Step z", turns=[], thought="", tool_calls=calls)]
    lm = scripted_lm([[finish()]])
    carried_out(lm, executor, step=step())
    roles = [message.role for message in lm.requests[0].messages]
    assert roles == ["user", "assistant", "user"]
    assert "# Step z" in (lm.requests[0].messages[0].text or "")


def test_two_tools_of_one_name_are_refused() -> None:
    def twin() -> None:
        """Twin."""

    with pytest.raises(errors.InvalidSettingError, match="twin"):
        StepExecutor([twin, twin])
    with pytest.raises(errors.InvalidSettingError, match="max_turns"):
        StepExecutor(max_turns=0)


def test_every_call_is_counted_by_what_it_was_for() -> None:
    ledger = Ledger()
    lm = scripted_lm(lambda _: "x" * 40)
    with overriding(callbacks=[ledger], lm=lm):
        for purpose in (Purpose(PLANNING), Purpose("a"), Purpose("a", 2)):
            with spending_on(purpose):
                dspy.Predict("question -> answer", max_tokens=9).lm = lm
                lm("y" * 400)
    usage = TokenUsage.of(ledger.calls)
    assert (usage.planning.calls, usage.steps["a"].calls, usage.total.calls) == (1, 2, 3)
    one = usage.planning
    assert (one.input_tokens, one.output_tokens, one.total_tokens) == (100, 11, 111)
    assert usage.total.total_tokens == 333
    assert [call.attempt for call in usage.calls] == [1, 1, 2]


def test_a_model_that_finishes_at_once_needs_one_turn() -> None:
    lm = scripted_lm([[finish()]])
    assert carried_out(lm, StepExecutor(max_turns=1), step=step()).summary == "done"


def test_a_call_tells_its_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter([2.0, 2.0123456]).__next__)
    monkeypatch.setattr("hybridagi_steps.planning.usage.time", clock)
    ledger = Ledger()
    ledger.end(ledger.begin({}), Usage(), None, None)
    assert [call.duration_ms for call in ledger.calls] == [12.346]


LOOK = {"name": "look", "arguments": '{"at": "x"}'}
CALL = {"id": "call_1", "type": "function", "function": LOOK}


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        (["Paris"], {"role": "assistant", "content": "Paris"}),
        ([{"text": ""}], {"role": "assistant", "content": None}),
        (
            [
                {
                    "text": "I look",
                    "tool_calls": [
                        CALL,
                        SimpleNamespace(id="call_1", function=SimpleNamespace(**LOOK)),
                    ],
                }
            ],
            {"role": "assistant", "content": "I look", "tool_calls": [CALL, CALL]},
        ),
        (None, None),
        ([], None),
        ([5], None),
        ("Paris", None),
    ],
)
def test_an_answer_counts_as_the_message_that_it_becomes(outputs: Any, answer: Any) -> None:
    ledger = Ledger()
    asked = [message("user", 3)]
    for inputs in ({"messages": asked}, {"kwargs": {"messages": asked}}, {"prompt": "w w w"}):
        ledger.end(ledger.begin(inputs), Usage(), outputs, None)
    assert [call.answer for call in ledger.calls] == [answer] * 3
    assert [call.messages for call in ledger.calls] == [asked, asked, []]


def test_cached_tokens_weigh_what_they_cost() -> None:
    call = LMCall(
        part="a",
        input_tokens=1_000,
        output_tokens=10,
        cache_read_tokens=800,
        cache_write_tokens=100,
    )
    spent = Usage.of([call, LMCall(part="a")])
    assert spent.total_tokens == 1_010
    assert spent.weighted_tokens == pytest.approx(100 + 10 + 80 + 125)
    assert spent.unreported == 1
    assert Usage().total_tokens is None


def message(role: str, words: int) -> dict[str, Any]:
    return {"role": role, "content": "w " * words}


def test_rivals_are_counted_on_the_same_answers() -> None:
    """Two steps of one call each: the second would have seen the first."""
    system = message("system", 7)

    def call(part: str, brief: int, fresh: str) -> LMCall:
        messages = [system, message("user", brief)]
        return LMCall(
            part=part, messages=messages, answer=message("assistant", 5), fresh=fresh, files={}
        )

    calls = [call("a", 100, "x " * 60), call("b", 50, "x " * 20)]
    compared = compare(calls, ["a", "b"], WORDS, last=1)
    each = 3  # tokens around a message
    assert compared.ours == (7 + 100 + 5 + 3 * each) + (7 + 50 + 5 + 3 * each)
    second = 7 + 100 + 5 + 20 + 5 + 5 * each
    assert compared.full_history == (7 + 100 + 5 + 3 * each) + second
    assert compared.last_messages == compared.full_history - 5 - each
    assert compared.saving == pytest.approx(1 - compared.ours / compared.full_history)
    assert not compared.estimated
    assert compare([], [], EstimatingCounter()).saving is None


def test_planning_counts_against_us_only() -> None:
    calls = [
        LMCall(part=PLANNING, messages=[message("user", 40)], answer=message("assistant", 1)),
        LMCall(part="a", messages=[message("user", 10)], answer=message("assistant", 1)),
    ]
    compared = compare(calls, ["a"], WORDS)
    assert compared.planning == 40 + 1 + 6
    assert compared.ours == compared.planning + compared.full_history


@pytest.mark.parametrize("broken", ['{"text": "half of', "no JSON at all"])
@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_arguments_that_are_no_json_are_named_and_not_guessed(broken: str, engine: str) -> None:
    if engine == "litellm":
        pytest.importorskip("mcp", reason="litellm sends tools only where `mcp` is installed")
    noted: list[str] = []

    def note(text: str) -> str:
        """Note."""
        noted.append(text)
        return "noted"

    turns = [("note", broken), ("note", '{"text": "all"}'), ("finish_step", '{"summary": "done"}')]
    with Scripted(turns) as provider:
        lm = dspy.LM(
            "openai/gpt-4o", api_base=provider.address, api_key="none", cache=False, engine=engine
        )
        with dspy.context(lm=lm):
            done = StepExecutor([note])(requirement="r", step=step())
    assert done.summary == "done"
    assert noted == ["all"]
    told = provider.asked[1]["messages"][-1]["content"]
    assert told.startswith("ToolInputError: the arguments of note are no JSON object")
    assert broken in told


class Scripted(ThreadingHTTPServer):
    """A provider on this machine that answers with tool calls, their arguments as written here."""

    def __init__(self, turns: list[tuple[str, str]]) -> None:
        self.turns, self.asked = turns, list[dict[str, Any]]()
        super().__init__(("127.0.0.1", 0), _Turn)
        self.address = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Turn(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = cast("Scripted", self.server)
        name, arguments = server.turns[len(server.asked)]
        server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        function = {"name": name, "arguments": arguments}
        call = {"id": f"call_{len(server.asked)}", "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
        data = json.dumps({**told, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

"""What becomes of values: detached, short, redacted, never too large; and what failures do."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from pydantic import BaseModel, SecretStr
from recorder_programs import Pair, all_steps

import hybridagi_steps as hs
from hybridagi_steps.errors import DiskFullError
from hybridagi_steps.programs.adapters import StepMessages
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.values import plain
from hybridagi_steps.testing import scripted_lm


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


class Colour(Enum):
    """An enum."""

    RED = "red"


class Model(BaseModel):
    """A pydantic record."""

    name: str
    vector: list[float] | None = None
    secret: SecretStr = SecretStr("hidden")


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int


STEP = hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": "p"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ((1, 2.5, None, True), [1, 2.5, None, True]),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
        (Colour.RED, "red"),
        (Point(3), {"x": 3}),
        (Model(name="n", vector=[1.0]), {"name": "n", "secret": "**********"}),
        (dspy.Example(a=1, b="x"), {"a": 1, "b": "x"}),
        (dspy.Prediction(answer="y"), {"answer": "y"}),
        (STEP, {"step": str(STEP.id)}),
        (hs.AgentStepList(steps=[STEP]), {"steps": [str(STEP.id)]}),
        (hs.QueryWithSteps(queries=hs.QueryList(), steps=[STEP]), {"steps": [str(STEP.id)]}),
        (hs.StepContext(steps=[STEP]), {"steps": [str(STEP.id)]}),
        ([hs.StepHit(step=STEP, score=0.5)], [{"step": str(STEP.id), "score": 0.5}]),
        (dspy.History(messages=[{"question": "a"}]), {"messages": [{"question": "a"}]}),
        (dspy.History(messages=[]), {"messages": []}),
        (dspy.Image("https://x.org/a.png"), "<image https://x.org/a.png>"),
        (np.ones((2, 3)), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
        (np.arange(64), list(range(64))),
        (np.float32(1.5), 1.5),
        (b"\x00\x01", "AAE="),
        (len, "<function len>"),
        (Point, "<class Point>"),
        (Path("a/b"), "a/b"),
        ({1}, [1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_become_plain_data(value: Any, expected: Any) -> None:
    cuts: list[str] = []
    found = plain(value, cuts)
    assert found == expected
    assert cuts == []
    json.dumps(found)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones((5, 13)), "ndarray of shape (5, 13)"),
        ([0.5] * 384, "384 numbers"),
        (b"\x00" * 5_000, "5,000 bytes"),
        (memoryview(b"\x00" * 257), "257 bytes"),
        (object(), "object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_kept_is_named(memory: hs.StepMemory, value: Any, words: str) -> None:
    step = called(memory, {"kept": 1, "left": value})
    assert step.result == {"kept": 1, "left": f"<{words}>"}
    assert step.metadata == {"truncated": [f"outputs: {words} left out"]}


def test_a_tag_that_cannot_be_kept_is_named(memory: hs.StepMemory) -> None:
    with hs.record(memory, tags={"who": object()}):
        step = called(memory, 1)
    assert step.metadata == {"who": "<object>", "truncated": ["metadata: object left out"]}


def test_thousands_of_things_left_out_are_not_all_named(memory: hs.StepMemory) -> None:
    step = called(memory, [np.zeros(65 + n) for n in range(1_000)])
    assert step.metadata is not None
    assert len(step.metadata["truncated"]) == 100


def test_media_models_tools_and_modules_become_a_few_words() -> None:
    values = [
        dspy.Image("data:image/png;base64," + "A" * 100_000),
        dspy.Tool(len, name="count", args={}, desc="d"),
        scripted_lm(),
        Pair(),
    ]
    words = [plain(value, []) for value in values]
    assert words == [
        "<image of 100,022 characters>",
        "<tool count>",
        "<language model scripted/model>",
        "<module Pair>",
    ]


def test_a_short_history_is_kept_and_found(memory: hs.StepMemory) -> None:
    talk = dspy.History(messages=[{"question": "my booking is RES-77", "answer": "ok"}])
    predict = dspy.Predict("history: dspy.History, question -> answer")
    with dspy.context(lm=scripted_lm()), hs.record(memory):
        predict(history=talk, question="which?")
    [step] = memory.iter_steps()
    assert step.arguments["history"] == {"messages": talk.messages}
    assert step.metadata is None
    assert [hit.step.id for hit in memory.search("RES-77", mode="lexical")] == [step.id]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (dspy.History(messages=[{"question": "q" * 5_000}]), "history of 1 messages"),
        (dspy.History(messages=[{"question": "q"}] * 101), "history of 101 messages"),
        (dspy.Image("data:image/png;base64,AAAA"), "image of 26 characters"),
        (dspy.File(file_data="data:text/plain;base64,AAAA", filename="a.txt"), "file a.txt"),
        (StepMessages.of([{"role": "user", "content": "hi"}]), "history of 1 messages"),
    ],
    ids=["long", "many", "image", "file", "messages"],
)
def test_a_history_or_medium_left_out_is_named(
    memory: hs.StepMemory, value: Any, words: str
) -> None:
    step = called(memory, 1, given=value)
    assert step.arguments["_"] == {"given": f"<{words}>"}
    assert step.metadata == {"truncated": [f"inputs: {words} left out"]}


def test_a_talk_grows_its_steps_no_further_than_a_limit(memory: hs.StepMemory) -> None:
    talk: list[Any] = []
    for turn in range(60):
        talk.append({"question": f"question {turn}", "answer": "a" * 200})
        step = called(memory, turn, history=dspy.History(messages=list(talk)))
        assert len(step.model_dump_json()) < 6_000


def test_cycles_depths_and_floods_end_with_a_note() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    deep: Any = "bottom"
    for _ in range(100):
        deep = [deep]
    wide: Any = ["leaf"]
    for _ in range(40):
        wide = [wide, wide]
    cuts: list[str] = []
    for name, value in (("loop", loop), ("deep", deep), ("wide", wide)):
        json.dumps(plain(value, cuts, name))
    assert {cut.split(":")[0] for cut in cuts} == {"loop", "deep", "wide"}


@pytest.mark.parametrize(("levels", "told"), [(41, []), (42, ["x: nested deeper than 40 levels"])])
def test_what_is_nested_is_kept_down_to_a_depth(levels: int, told: list[str]) -> None:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    cuts: list[str] = []
    assert (plain(value, cuts, "x") == value) is (told == [])
    assert cuts == told


def called(memory: hs.StepMemory, result: Any, **inputs: Any) -> hs.AgentStep:
    """The step of a function that took `inputs` and gave `result`."""

    @hs.record_step(purpose="give")
    def give(**_: Any) -> Any:
        return result

    with hs.record(memory) as run:
        assert give(**inputs) is result
    [step] = run.steps.steps
    return step


def test_a_secret_is_never_cut_in_two_before_it_is_redacted() -> None:
    class Described:
        def __str__(self) -> str:
            return "x" * 497 + "s3cret"

    with hs.StepMemory(":memory:", embedder="hashing", redact=without_secrets) as memory:
        assert called(memory, Described()).result == "x" * 497 + "***"
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        huge = type("Huge", (), {"__str__": lambda _: "x" * 30_000})()
        assert called(memory, huge).result == "<Huge: 30,000 characters>"
        assert called(memory, object()).result == "<object>"


def test_a_step_holds_copies(memory: hs.StepMemory) -> None:
    numbers = [1, 2]
    step = called(memory, numbers, given=numbers)
    numbers.append(3)
    assert all_steps(memory)[0].result == step.result == [1, 2]


def test_what_json_cannot_hold_is_repaired_with_a_note(memory: hs.StepMemory) -> None:
    step = called(memory, {1: float("nan"), "bad": "\ud800\x00"})
    assert step.result == {"1": None, "bad": "\ufffd\ufffd"}
    assert step.metadata is not None
    assert len(step.metadata["repairs"]) == 3


def test_an_object_that_cannot_be_described_does_not_lose_the_step(memory: hs.StepMemory) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    assert called(memory, Broken()).result == "<Broken: RuntimeError in str()>"


def test_a_value_that_breaks_when_read_does_not_lose_the_step(memory: hs.StepMemory) -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError("no")

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("no")

        def __len__(self) -> int:
            return 1

    class Answer(dspy.Module):
        def forward(self) -> Any:
            return Lazy()

    with hs.record(memory) as run:
        Answer()()
    end = run.steps.steps[-1]
    assert end.outputs == {"result": "<Lazy: RuntimeError when it was read>"}
    assert end.metadata == {"truncated": ["outputs: RuntimeError when it was read"]}


def test_a_program_that_could_not_be_read_at_its_start_leaves_nothing(
    memory: hs.StepMemory,
) -> None:
    class Odd(dspy.Module):
        @property
        def purpose(self) -> str:
            raise RuntimeError("not yet")

        def forward(self) -> Any:
            return dspy.Predict("question -> answer")(question="?")

    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        assert Odd()().answer == "some answer"
    assert [step.step_type.value for step in run.steps.steps] == ["Action"]
    assert [str(error) for error in run.errors] == ["a call could not be read (RuntimeError)"]


def test_a_large_value_is_kept_whole_and_a_larger_one_is_cut_with_a_note(
    memory: hs.StepMemory,
) -> None:
    assert len(called(memory, "x" * 3_000_000).result) == 3_000_000
    with hs.record(memory, tags={"kind": "huge"}):
        step = called(memory, ["y" * 30_000_000, "z" * 10])
    assert [len(text) for text in step.result] == [1_000_000, 10]
    assert step.metadata == {
        "kind": "huge",
        "truncated": ["outputs.result[0]: kept 1,000,000 of 30,000,000 characters"],
    }


def test_many_large_values_fit_too(memory: hs.StepMemory) -> None:
    step = called(memory, ["\u20ac" * 900_000 for _ in range(60)], control="\x01" * 4_000_000)
    assert step.metadata is not None
    assert 60 < len(step.metadata["truncated"]) <= 100
    assert len(step.model_dump_json()) < 8 * 1024 * 1024


def without_secrets(text: str) -> str:
    """Takes a secret out."""
    return text.replace("s3cret", "***")


def test_what_redaction_takes_out_reaches_nothing(tmp_path: Path) -> None:
    lm = scripted_lm([{"one": "the s3cret"}, ValueError("broke on s3cret")])
    path = tmp_path / "steps.db"
    with hs.StepMemory(str(path), embedder="hashing", redact=without_secrets) as memory:
        tags = {"note": "s3cret", "nested": {"s3cret": 1}}
        with (
            dspy.context(lm=lm),
            hs.record(memory, tags=tags) as run,
            pytest.raises(Exception, match="s3cret"),
        ):
            Pair()(question="what is s3cret?")
        steps = run.steps.steps
        assert "s3cret" not in repr(steps)
        assert steps[0].arguments == {"question": "what is ***?"}
        assert steps[1].outputs == {"one": "the ***"}
        assert steps[2].outputs is not None
        assert "broke on ***" in steps[2].outputs["error"]["message"]
        assert steps[0].metadata == {"note": "***", "nested": {"***": 1}}
        memory.flush()
    for file in tmp_path.iterdir():
        assert b"s3cret" not in file.read_bytes(), file.name


def test_names_are_redacted_where_they_are_not_the_conventions_own(tmp_path: Path) -> None:
    class Key:
        def __str__(self) -> str:
            return "key s3cret"

    class Answer(dspy.Module):
        def forward(self, **_: Any) -> Any:
            return {"s3cret_field": 1, "field": {Key(): b"s3cret"}}

    path = tmp_path / "steps.db"
    with hs.StepMemory(str(path), embedder="hashing", redact=without_secrets) as memory:
        with hs.record(memory, tags={"sk-s3cret": 1, "plain": 2}) as run:
            Answer()(s3cret=1, other=2)
        call, end = run.steps.steps
        assert call.inputs == {
            "program": "Answer",
            "purpose": "Answer",
            "arguments": call.arguments,
        }
        assert call.arguments == {"***": 1, "other": 2}
        assert call.metadata == {"sk-***": 1, "plain": 2}
        assert end.outputs == {"***_field": 1, "field": {"key ***": "<6 bytes>"}}
        assert end.metadata is not None
        assert end.metadata["truncated"] == ["outputs: 6 bytes left out"]
        memory.flush()
    for file in tmp_path.iterdir():
        assert b"s3cret" not in file.read_bytes(), file.name


@pytest.mark.parametrize("odd", [None, 7, b"bytes"])
def test_a_redaction_that_gives_no_text_stores_no_text(odd: Any) -> None:
    def forgetful(text: str) -> Any:
        return odd if "s3cret" in text else text

    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=forgetful) as memory,
        hs.record(memory) as run,
    ):
        step = called(memory, "s3cret", number=1)
    assert step.result == "[redaction failed]"
    assert "s3cret" not in repr(step)
    [problem] = run.errors
    assert "must return a string" in str(problem)


def test_a_redaction_that_gives_half_a_character_is_repaired() -> None:
    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=lambda _: "\ud800") as memory,
        hs.record(memory) as run,
    ):
        step = called(memory, "s3cret")
    assert step.result == "\ufffd"
    assert run.errors == []


def test_a_redaction_that_fails_leaves_the_step_without_its_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def brittle(text: str) -> str:
        if "s3cret" in text:
            raise ValueError(f"cannot redact {text}")
        return text

    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=brittle) as memory,
        hs.record(memory) as run,
    ):
        dspy.Tool(lambda q: 42, name="find", desc="Find.", args={"q": {}}, arg_types={})(q="s3cret")
        [step] = run.steps.steps
    assert step.inputs is not None
    assert step.inputs["tool"] == "[redaction failed]"
    assert step.arguments == {"[redaction failed]": "[redaction failed]"}
    assert step.result == 42
    assert [str(error) for error in run.errors] == ["redacting the Action failed (ValueError)"]
    assert "s3cret" not in caplog.text


def test_a_redaction_that_always_fails_leaves_a_step_that_says_so() -> None:
    def broken(text: str) -> str:
        raise ValueError(text)

    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=broken) as memory,
        hs.record(memory) as run,
    ):
        called(memory, "s3cret")
        [step] = run.steps.steps
    assert step.inputs is None
    assert step.outputs is None
    assert step.metadata == {"redaction_failed": True}


def test_a_redaction_may_be_a_program_itself(memory: hs.StepMemory) -> None:
    predict = dspy.Predict("text -> clean")

    def scrub(text: str) -> str:
        return predict(text=text).clean.upper()

    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=scrub) as scrubbed,
        dspy.context(lm=scripted_lm(lambda _: {"clean": "clean", "answer": "raw"})),
        hs.record(scrubbed) as run,
    ):
        dspy.Predict("question -> answer")(question="?")
        [step] = run.steps.steps
    assert step.outputs == {"CLEAN": "CLEAN"}
    assert step.hop == 0


class FullMemory:
    """A memory whose disk is full from the third step on."""

    redact = None

    def __init__(self) -> None:
        self.steps: list[hs.AgentStep] = []

    def add(self, step: hs.AgentStep) -> None:
        if len(self.steps) >= 2:
            raise DiskFullError("no space left on /data")
        self.steps.append(step)

    def run(self, run_id: str) -> list[hs.AgentStep]:
        return self.steps


def test_a_memory_that_fails_never_breaks_the_program(caplog: pytest.LogCaptureFixture) -> None:
    full = FullMemory()
    with dspy.context(lm=scripted_lm()), hs.record(full) as run:
        answer = Pair()(question="?")
    assert answer.three == "some three"
    assert [step.hop for step in full.steps] == [0, 1]
    assert len(run.errors) == 3
    assert "DiskFullError: no space left on /data" in str(run.errors[0])
    warned = [r for r in caplog.records if r.name == "hybridagi_steps"]
    assert [r.levelno for r in warned] == [logging.WARNING] * 2, "once per kind of step"


def test_a_program_whose_call_was_not_stored_leaves_no_end(memory: hs.StepMemory) -> None:
    class Gap:
        redact = None
        refused = False

        def add(self, step: hs.AgentStep) -> None:
            if not self.refused:
                self.refused = True
                raise DiskFullError("full")
            memory.add(step)

        def run(self, run_id: str) -> Any:
            return memory.run(run_id)

    with dspy.context(lm=scripted_lm()), hs.record(Gap()) as run:
        Pair()(question="?")
    assert [step.step_type.value for step in run.steps.steps] == ["Action"] * 3
    assert [step.hop for step in run.steps.steps] == [0, 1, 2]


def test_who_watches_a_step_sees_it_stored_or_not() -> None:
    """A run of nodes keeps its own steps: those that could not be stored are linked to the rest."""
    full, problem = FullMemory(), DiskFullError
    with hs.record(full) as run:
        nodes = RunSteps(full)
        with nodes.step(FunctionStep("program", "main", "All"), {}) as outer:
            for name in "abc":
                with nodes.step(FunctionStep("action", name, "One"), {"n": 1}) as node:
                    node.outcome = name
                    node.arguments["more"] = 2
                written = nodes.steps[-1]
                assert node.written is written
                assert (written.result, written.arguments) == (name, {"n": 1, "more": 2})
    assert outer.written is nodes.steps[-1]
    assert [str(s.step_type) for s in nodes.steps] == ["ProgramCall", *["Action"] * 3, "ProgramEnd"]
    assert nodes.steps[:2] == full.steps
    assert [step.hop for step in nodes.steps] == [0, 1, 2, 3, 4]
    assert [step.parent_id for step in nodes.steps[1:]] == [step.id for step in nodes.steps[:-1]]
    assert {step.program_id for step in nodes.steps[1:]} == {str(nodes.steps[0].id)}
    assert [each.error_type for each in run.errors] == [problem.__name__] * 3
    assert nodes.problems == run.errors


def test_errors_of_a_global_recorder_stand_on_it() -> None:
    recorder = hs.StepRecorder(FullMemory())
    with dspy.context(lm=scripted_lm(), callbacks=[recorder]):
        Pair()(question="?")
    assert len(recorder.errors) == 3

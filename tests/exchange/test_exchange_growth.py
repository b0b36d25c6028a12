"""Files that grow, and talk that is not over: what is told of it is true at every point."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import unsourced
from exchange_talks import contents, model, said, user, written

import hybridagi_steps as hs
from hybridagi_steps import AgentStepType
from hybridagi_steps.exchange import export_file, import_file


def call(call_id: str, name: str = "find") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def asks(*call_ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(i) for i in call_ids]}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


TALK = [
    user("Where are my bags?"),
    asks("c1", "c2"),
    result("c2", "carousel seven"),
    result("c1", "lost"),
    model("One is lost."),
    user("Which one?"),
    model("The red one."),
]


def told(memory: hs.StepMemory) -> list[tuple[Any, ...]]:
    steps = sorted(memory.iter_steps(), key=lambda step: step.hop)
    return [(str(s.step_type), s.outputs, s.status, str(s.id)) for s in steps]


def test_growing_message_by_message_ends_where_one_import_does(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    def grown(count: int) -> Path:
        return written(tmp_path, {"session_id": "bags", "messages": TALK[:count]})

    for count in range(1, len(TALK) + 1):
        assert import_file(memory, grown(count)).skipped == []
    with hs.StepMemory(":memory:", embedder="hashing") as whole:
        import_file(whole, grown(len(TALK)))
        assert told(memory) == told(whole)
        kinds = [kind for kind, *_ in told(whole)]
    answered = ["ProgramCall", "Action", "ProgramEnd"]
    assert kinds == ["ProgramCall", "Action", "Action", *answered[1:], *answered]
    assert [step.to_message_dict() for step in said(memory, "bags")] == TALK
    assert len(memory.find({"tools": ["find"], "status": "ok"}).steps) == 2
    assert memory.verify() == []
    assert export_file(memory, tmp_path / "out.jsonl", format="openai") == 1


@pytest.mark.parametrize("count", range(1, len(TALK)))
def test_an_older_file_says_nothing_new(memory: hs.StepMemory, tmp_path: Path, count: int) -> None:
    import_file(memory, written(tmp_path, {"session_id": "bags", "messages": TALK}))
    before = told(memory)
    older = written(tmp_path, {"session_id": "bags", "messages": TALK[:count]})
    report = import_file(memory, older)
    assert (report.added, report.skipped, report.read) == (0, [], report.already_there)
    assert told(memory) == before


def test_a_question_without_an_answer_has_no_end(memory: hs.StepMemory, tmp_path: Path) -> None:
    talk = [user("Book it."), model("Which one?"), user("The red one.")]
    import_file(memory, written(tmp_path, {"id": "t", "messages": talk}))
    ends = [outputs for kind, outputs, *_ in told(memory) if kind == "ProgramEnd"]
    assert ends == [{"result": "Which one?"}]


def test_an_end_is_dated_by_its_answer(memory: hs.StepMemory, tmp_path: Path) -> None:
    talk = [
        {**user("q"), "created_at": "2024-05-01T10:00:00Z"},
        {**model("a"), "created_at": "2024-05-01T10:00:09Z"},
    ]
    import_file(memory, written(tmp_path, {"messages": talk, "created_at": "2024-05-01T09:00:00Z"}))
    assert memory.runs()[0].ended_at == "2024-05-01T10:00:09+00:00"


def test_a_late_result_meets_its_call(memory: hs.StepMemory, tmp_path: Path) -> None:
    talk = [user("Where?"), asks("c1"), user("Hello?"), result("c1", "late"), model("There.")]
    import_file(memory, written(tmp_path, {"id": "t", "messages": talk}))
    [found] = memory.find({"tools": ["find"]}).steps
    assert (found.result, found.status) == ("late", "ok")
    assert (found.metadata or {})["message_indexes"] == [1, 3]
    assert contents(memory) == {"t": ["Where?", None, "Hello?", "late", "There."]}


def test_what_stands_behind_the_last_step_is_kept(memory: hs.StepMemory, tmp_path: Path) -> None:
    talk = [user("q"), model("a"), {"role": "system", "content": "be brief"}]
    import_file(memory, written(tmp_path, {"id": "t", "messages": talk}))
    assert contents(memory) == {"t": ["q", "a", "be brief"]}
    kept = [m for step in memory.iter_steps() for m in (step.model_extra or {})["messages"]]
    assert kept == talk


@pytest.mark.parametrize("first", ["system", "user", "assistant"])
def test_three_messages_are_a_conversation(
    memory: hs.StepMemory, tmp_path: Path, first: str
) -> None:
    talk = [{"role": first, "content": "x"}, user("Cancel it."), model("It is cancelled.")]
    assert import_file(memory, written(tmp_path, talk)).skipped == []
    assert list(contents(memory).values()) == [["x", "Cancel it.", "It is cancelled."]]


def test_an_id_that_says_two_things_is_named(memory: hs.StepMemory, tmp_path: Path) -> None:
    step = {"id": "s1", "step_type": "Action", "inputs": {"purpose": "p"}}
    lines = [{**step, "outputs": {"result": text}} for text in ("old", "new", "old")]
    report = import_file(memory, written(tmp_path, *lines))
    assert (report.added, report.already_there) == (1, 1)
    assert report.skipped == [(2, "step s1 is stored already and says something else")]


def test_repeating_an_import_compares_what_redact_leaves(tmp_path: Path) -> None:
    with hs.StepMemory(":memory:", embedder="hashing", redact=lambda t: t.replace("q", "*")) as m:
        path = written(tmp_path, {"id": "t", "messages": TALK})
        first = import_file(m, path)
        again = import_file(m, path)
        assert (again.added, again.already_there, again.skipped) == (0, first.added, [])


def checkpoint(number: int, messages: list[tuple[str, str]]) -> dict[str, Any]:
    where = {"thread_id": "T", "checkpoint_ns": ""}
    before = {"configurable": {**where, "checkpoint_id": f"c{number - 1:03}"}}
    held = [{"type": kind, "content": text, "id": text} for kind, text in messages]
    return {
        "config": {"configurable": {**where, "checkpoint_id": f"c{number:03}"}},
        "checkpoint": {
            "v": 4,
            "id": f"c{number:03}",
            "ts": datetime(2026, 1, 1, 0, number, tzinfo=UTC).isoformat(),
            "channel_values": {"messages": held},
        },
        "parent_config": before if number else None,
    }


@pytest.mark.parametrize("newest_first", [True, False])
def test_messages_that_a_thread_dropped_are_a_line_of_their_own(
    memory: hs.StepMemory, tmp_path: Path, newest_first: bool
) -> None:
    talk = [("human" if n % 2 == 0 else "ai", f"m{n}") for n in range(10)]
    dumps = [checkpoint(n, talk[max(n - 3, 0) : n + 1]) for n in range(10)]  # a window of four
    path = written(tmp_path, *(reversed(dumps) if newest_first else dumps))
    assert import_file(memory, path).skipped == []
    assert contents(memory) == {
        "T": ["m6", "m7", "m8", "m9"],
        "T@removed": ["m0", "m1", "m2", "m3", "m4", "m5"],
    }
    assert import_file(memory, path).added == 0


def test_what_is_no_checkpoint_is_named(memory: hs.StepMemory, tmp_path: Path) -> None:
    report = import_file(memory, written(tmp_path, {"messages": TALK}), format="langgraph")
    assert report.skipped == [(1, "not a checkpoint: no channel_values, and no values")]


def history(user_text: str) -> dict[str, Any]:
    system = (
        "Your input fields are:\n1. `question` (str):\n2. `trajectory` (str):\n"
        "Your output fields are:\n1. `answer` (str):"
    )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user_text}]
    said = ["[[ ## answer ## ]]\nrain\n\n[[ ## completed ## ]]"]
    return {"messages": messages, "outputs": said, "usage": {}, "model": "m", "uuid": "u"}


def test_a_history_has_the_fields_that_its_prompt_declares(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    inner = "[[ ## thought_0 ## ]]\nlook\n\n[[ ## observation_0 ## ]]\nrain"
    asked = f"[[ ## question ## ]]\nweather?\n\n[[ ## trajectory ## ]]\n{inner}\n\n"
    asked += "Respond with the corresponding output fields, starting with the field `answer`."
    import_file(memory, written(tmp_path, history(asked)))
    [step] = memory.iter_steps()
    assert step.arguments == {"question": "weather?", "trajectory": inner}
    assert step.outputs == {"answer": "rain"}


def test_scores_of_runs_come_back_as_such(memory: hs.StepMemory, tmp_path: Path) -> None:
    steps = [
        hs.AgentStep(id="a", step_type=AgentStepType.Action, run_id="r1"),
        hs.AgentStep(id="b", step_type=AgentStepType.Action, run_id="r1", score=0.9),
        hs.AgentStep(id="c", step_type=AgentStepType.Action, run_id="r2"),
    ]
    memory.add(steps)
    memory.score("r1", 0.25, "meh")
    export_file(memory, tmp_path / "out.jsonl")
    with hs.StepMemory(":memory:", embedder="hashing") as copy:
        report = import_file(copy, tmp_path / "out.jsonl")
        assert (report.added, report.skipped) == (3, [])
        known = {run.run_id: (run.score, run.feedback) for run in copy.runs()}
        assert known == {"r1": (0.25, "meh"), "r2": (None, None)}
        export_file(copy, tmp_path / "again.jsonl")
        told = [
            [unsourced(json.loads(line)) for line in (tmp_path / name).read_text().splitlines()]
            for name in ("again.jsonl", "out.jsonl")
        ]
        assert told[0] == told[1]
        copy.score("r1", 0.5)
        assert import_file(copy, tmp_path / "out.jsonl").skipped == []
        assert [step.score for step in copy.get(["a", "b", "c"]).steps] == [0.5, 0.9, None]


def test_each_line_of_a_scored_run_is_a_step(memory: hs.StepMemory, tmp_path: Path) -> None:
    memory.add([hs.AgentStep(id=i, step_type=AgentStepType.Action, run_id="r") for i in "ab"])
    memory.score("r", 1)
    export_file(memory, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [hs.AgentStep.model_validate(line).score for line in lines] == [1.0, 1.0]
    assert [line.get("run_score") for line in lines] == [{"value": 1.0}, None]


def test_a_field_of_that_name_stays_what_it_is(memory: hs.StepMemory, tmp_path: Path) -> None:
    line = {"id": "a", "step_type": "Action", "run_id": "r", "run_score": "high", "score": 1}
    import_file(memory, written(tmp_path, line))
    [step] = memory.iter_steps()
    assert (step.score, step.model_extra) == (1.0, {"run_score": "high"})

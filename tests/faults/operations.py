"""Every operation of a memory, written by lanes: by chance, each under names of its own.

A lane knows what it has written and acknowledged, so it can update, delete, fork and purge what is
there. `perform` is the only place that calls the library; `read` returns what can be read back.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import StepsError
from hybridagi_steps.exchange import import_file
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.stores.prompts import PromptStore

from .expected import Actual, Operation, State, applied, empty
from .processes import shown

EVERY = (
    *("add", "batch", "update", "delete", "score", "import", "vacuum"),
    *("append", "commit", "save_step", "save_batch", "fork", "retry", "delete_steps"),
    *("pin", "forget", "consolidate", "keep_prompts"),
    *("purge_run", "purge_session", "flush", "search", "reembed", "clear"),
)
ALONE = ("clear", "reembed")
"""What other writers of a namespace would not survive: for lanes that have one of their own."""
_SMALL, _LARGE = (3, 40), (300, 6000)


class Lane:
    """Chooses operations for one writer."""

    def __init__(self, name: str, state: State, chance: random.Random, *, alone: bool) -> None:
        self.name, self.state, self.chance, self.alone = name, state, chance, alone
        self._made = chance.randrange(1 << 40)

    def endless(self, focus: str | None = None) -> Iterator[Operation]:
        """Yield operations, more than half of them `focus`, where that can be done."""
        possible = [name for name in EVERY if self.alone or name not in ALONE]
        cheap = [name for name in possible if name not in ("vacuum", "clear", "reembed")]
        focus = focus if focus in possible else None
        while True:
            wanted = focus if focus and self.chance.random() < 0.6 else self.chance.choice(cheap)
            yield self.made(wanted) or self.made("add") or {"do": "nothing"}

    def new_only(self) -> Iterator[Operation]:
        """Yield operations that touch nothing that is there: right after any error."""
        while True:
            steps = self._steps(1 + self.chance.randrange(3))
            yield {"do": "add" if len(steps) == 1 else "batch", "steps": steps}

    def acknowledged(self, operation: Operation) -> None:
        """Take note that an operation was done."""
        self.state = applied(self.state, operation)

    def made(self, name: str) -> Operation | None:
        """Return an operation of this kind; None if there is nothing to do it with."""
        makers: dict[str, Callable[[], Operation | None]] = {
            "add": lambda: {"do": "add", "steps": self._steps(1)},
            "batch": lambda: {"do": "batch", "steps": self._steps(self.chance.randint(2, 7))},
            "import": lambda: {"do": "import", "steps": self._steps(self.chance.randint(2, 30))},
            "update": self._update,
            "keep_prompts": self._keep_prompts,
            "delete": self._delete,
            "score": self._score,
            "append": lambda: self._said("append", self._session(), self.chance.randint(1, 3)),
            "save_step": lambda: self._said("save_step", self._session(), 1),
            "save_batch": lambda: self._said("save_batch", self._session(), 3),
            "commit": self._commit,
            "fork": self._fork,
            "retry": self._retry,
            "delete_steps": self._delete_steps,
            "pin": lambda: {"do": "pin", "ids": ids} if (ids := self._some()) else None,
            "forget": lambda: self._of_a_run("forget"),
            "purge_run": lambda: self._of_a_run("purge_run"),
            "purge_session": self._purge_session,
        }
        return makers[name]() if name in makers else {"do": name}

    def _word(self) -> str:
        self._made += 1
        return f"q{self.name}x{self._made:x}z"

    def _text(self) -> str:
        count = self.chance.randint(*(_LARGE if self.chance.random() < 0.08 else _SMALL))
        word = self._word()
        return f"{word} " + " ".join(f"w{self.chance.randrange(999)}" for _ in range(count))

    def _run(self) -> str:
        runs = [run for _, run, session in self.state["steps"].values() if session is None]
        if runs and self.chance.random() < 0.7:
            return self.chance.choice(runs[-20:])
        return f"{self.name}.run.{self._word()}"

    def _steps(self, count: int) -> list[list[Any]]:
        run = self._run()
        return [[f"{self.name}.{self._word()}", self._text(), run] for _ in range(count)]

    def _some(self) -> list[str]:
        """Return ids of a few steps that no session needs."""
        own = [name for name, (_, _, session) in self.state["steps"].items() if session is None]
        return self.chance.sample(own, min(self.chance.randint(1, 4), len(own))) if own else []

    def _update(self) -> Operation | None:
        steps = [[name, self._text(), self.state["steps"][name][1]] for name in self._some()]
        return {"do": "update", "steps": [*steps, *self._steps(1)]} if steps else None

    def _keep_prompts(self) -> Operation:
        """A step in a run of its own, that recalls some of others."""
        name, word = f"{self.name}.{self._word()}", self._word()
        steps = [[name, word, f"{self.name}.run.{word}"]]
        return {"do": "keep_prompts", "steps": steps, "of": self._some()}

    def _delete(self) -> Operation | None:
        return {"do": "delete", "ids": ids} if (ids := self._some()) else None

    def _score(self) -> Operation | None:
        some = self._some()
        runs = [self.state["steps"][name][1] for name in some]
        value = round(self.chance.random(), 6)
        return {"do": "score", "run": runs[0], "value": value} if runs else None

    def _session(self) -> str:
        known = list(self.state["sessions"])
        if known and self.chance.random() < 0.7:
            return self.chance.choice(known[-6:])
        return f"{self.name}.session.{self._word()}"

    def _said(self, kind: str, session: str, count: int) -> Operation:
        first = len(self.state["sessions"].get(session, ())) + 1
        contents = [self._text() for _ in range(count)]
        return {"do": kind, "session": session, "contents": contents, "first": first}

    def _commit(self) -> Operation:
        """A call, its result, and the step behind both."""
        operation = self._said("commit", self._session(), 2)
        word = operation["contents"][0].split()[0]
        run = f"{self.name}.run.{word}"
        return operation | {"steps": [[f"{self.name}.{word}", operation["contents"][0], run]]}

    def _place(self) -> tuple[str, int] | None:
        """Return a session and a sequence in it at which no call waits for its result."""
        known = [name for name, said in self.state["sessions"].items() if len(said) > 1]
        if not known:
            return None
        session = self.chance.choice(known)
        behind = {value[0] for value in (self.state["steps"] | self.state["maybe"]).values()}
        contents = self.state["sessions"][session]
        places = [n for n in range(1, len(contents) + 1) if contents[n - 1] not in behind]
        return (session, self.chance.choice(places)) if places else None

    def _fork(self) -> Operation | None:
        if (place := self._place()) is None:
            return None
        new = f"{self.name}.session.{self._word()}"
        return {"do": "fork", "session": place[0], "last": place[1], "new": new}

    def _retry(self) -> Operation | None:
        if (place := self._place()) is None:
            return None
        session, last = place
        return {"do": "retry", "session": session, "last": last, "contents": [self._text()]}

    def _delete_steps(self) -> Operation | None:
        if (place := self._place()) is None:
            return None
        return {"do": "delete_steps", "session": place[0], "last": place[1]}

    def _of_a_run(self, kind: str) -> Operation | None:
        own = self._some()
        return {"do": kind, "run": self.state["steps"][own[0]][1]} if own else None

    def _purge_session(self) -> Operation | None:
        known = list(self.state["sessions"])
        return {"do": "purge_session", "session": self.chance.choice(known)} if known else None


class Writer:
    """Carries out operations on a memory, and notes each before it begins and when it is done."""

    def __init__(self, memory: StepMemory, lane: Lane, notes: Path) -> None:
        self.memory, self.lane = memory, lane
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.folder = notes.parent

    def note(self, value: dict[str, Any]) -> None:
        """Write a line that outlives this process."""
        os.write(self._notes, json.dumps(value).encode() + b"\n")

    def go_on(self, operations: Iterator[Operation]) -> str:
        """Work until an operation raises; return what."""
        for operation in operations:
            if error := self.attempt(operation):
                return error
        return ""

    def attempt(self, operation: Operation) -> str:
        """Do one operation; return what it raised, empty if nothing."""
        self.note(operation)
        try:
            self.perform(operation)
        except Exception as error:  # noqa: BLE001, RUF100 - noted, for the attack to judge
            told = shown(error)
            self.note({"error": told, "typed": isinstance(error, StepsError)})
            return told
        self.note({"done": 1})
        self.lane.acknowledged(operation)
        return ""

    def perform(self, operation: Operation) -> None:
        """Call the library."""
        memory, kind = self.memory, operation["do"]
        if kind in ("add", "batch"):
            memory.add([step_of(*values) for values in operation["steps"]])
        elif kind == "update":
            memory.update([step_of(*values) for values in operation["steps"]])
        elif kind == "import":
            self._import(operation)
        elif kind == "keep_prompts":
            self._prompt(*operation["steps"], of=operation["of"])
        elif kind == "delete":
            memory.delete(operation["ids"])
        elif kind == "score":
            memory.score(operation["run"], operation["value"])
        elif kind == "pin":
            memory.pin(operation["ids"])
        elif kind == "forget":
            memory.forget({"run_id": operation["run"]})
        elif kind == "consolidate":
            memory.consolidate(least=2, dry_run=False)
        elif kind == "purge_run":
            memory.purge({"run_id": operation["run"]})
        elif kind == "purge_session":
            memory.purge({"session_id": operation["session"]})
        elif kind == "reembed":
            memory.reembed(HashingEmbedder(128 if memory.embedder.dimension == 256 else 256))
        elif kind == "search":
            memory.search(f"{self.lane.name} w{self.lane.chance.randrange(999)}", mode="lexical")
        elif kind in ("vacuum", "flush", "clear"):
            getattr(memory, kind)()
        elif kind != "nothing":
            asyncio.run(self._in_session(operation))

    def _import(self, operation: Operation) -> None:
        source = self.folder / f"{self.lane.name}.jsonl"
        steps = [step_of(*values) for values in operation["steps"]]
        source.write_text("".join(one.model_dump_json() + "\n" for one in steps))
        report = import_file(self.memory, source)
        assert report.added + report.already_there == len(steps), report
        source.unlink()

    def _prompt(self, values: list[Any], *, of: list[str]) -> None:
        """Add a step, with a prompt that says what it says and what it recalled."""
        step, seen = step_of(*values), self.memory.get_steps(of)
        step.metadata = {"recalled": of}
        words = " ".join(str(one.purpose) for one in (step, *seen))
        self.memory.add(step)
        call = LMCall(messages=[{"role": "user", "content": words}])
        self.memory.keep_prompts({str(step.id): [call]})

    async def _in_session(self, operation: Operation) -> None:
        repo, kind, session = self.memory.repository(), operation["do"], operation["session"]
        said = [{"role": "user", "content": text} for text in operation.get("contents", ())]
        if kind == "append":
            await repo.append(session, said)
        elif kind == "commit":
            steps = [step_of(*values) for values in operation["steps"]]
            await repo.commit(session, _call(operation["contents"]), steps)
        elif kind in ("save_step", "save_batch"):
            from hybridagi_steps import Step

            made = [
                Step.model_validate({**one, "session_id": session, "sequence": number})
                for number, one in enumerate(said, operation["first"])
            ]
            await (repo.save_step(made[0]) if kind == "save_step" else repo.save_steps_batch(made))
        elif kind == "fork":
            await repo.fork(session, operation["last"], operation["new"])
        elif kind == "retry":
            branch = await repo.branch_at(session, operation["last"])
            await repo.commit(session, said, branch_id=branch)
            await repo.adopt(session, branch)
        else:
            await repo.delete_steps(session, operation["last"] + 1)


def step_of(step_id: str, text: str, run: str | None) -> AgentStep:
    """Return the step that holds a text."""
    values = {"inputs": {"tool": "note", "purpose": text.split()[0]}, "outputs": {"text": text}}
    return AgentStep.model_validate({"step_type": "Action", "id": step_id, "run_id": run, **values})


def _call(contents: Sequence[str]) -> list[dict[str, Any]]:
    call_id = contents[0].split()[0]
    function = {"name": "note", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": contents[0], "tool_calls": calls},
        {"role": "tool", "content": contents[1], "tool_call_id": call_id},
    ]


def read(memory: StepMemory, lanes: Sequence[str]) -> dict[str, Actual]:
    """Return what each lane of a memory holds, by all ways that lead to it."""
    found: dict[str, Actual] = {
        name: {"steps": {}, "pinned": [], "scores": {}, "sessions": {}} for name in lanes
    }
    for step in memory.iter_steps():
        name = str(step.id).partition(".")[0]
        if name in found:
            found[name]["steps"][str(step.id)] = str((step.outputs or {}).get("text"))
            found[name]["pinned"] += [str(step.id)] if (step.metadata or {}).get("pinned") else []
    for run in memory.runs(limit=10**9):
        name = run.run_id.partition(".")[0]
        if name in found:
            found[name]["scores"][run.run_id] = run.score
    asyncio.run(_read_sessions(memory, found))
    return found


def prompts(memory: StepMemory) -> list[str]:
    """Return what the prompts of a memory say that are still kept, by whatever step."""
    store = memory.repository().store
    assert isinstance(store, PromptStore)
    kept = map(memory.prompt_of, store.prompted_steps())
    return [str(call.messages[0]["content"]) for calls in kept for call in calls]


async def _read_sessions(memory: StepMemory, found: dict[str, Actual]) -> None:
    repo = memory.repository()
    for session in await repo.sessions(limit=10**9):
        name = session.session_id.partition(".")[0]
        if name in found:
            messages = await repo.get_steps(session.session_id)
            told = [[message.sequence, message.content] for message in messages]
            found[name]["sessions"][session.session_id] = told


def modules_used() -> list[str]:
    """Use all of a memory once; return what is imported then."""
    lane = Lane("a", empty(), random.Random(1), alone=True)
    with TemporaryDirectory() as folder, StepMemory(f"{folder}/s.db", embedder="hashing") as memory:
        writer = Writer(memory, lane, Path(folder, "notes"))
        for name in EVERY:
            writer.attempt(lane.made(name) or {"do": "nothing"})
        memory.find()
        memory.search("anything")
        memory.verify()
        read(memory, ["a"])
    return sorted(sys.modules)

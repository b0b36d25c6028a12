"""What a memory must hold after what was acknowledged, and what is wrong with what it holds.

A writer notes every operation before it begins and when it is acknowledged. From these notes follow
the states that are right: one, if all were acknowledged; with and without the operation that was
cut short or failed, two. A memory that is in none of them broke a promise, and the way it differs
from the nearest says which. Pure functions: no store, no file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

Operation = dict[str, Any]
"""`do` says what; the rest are its arguments. JSON."""


class State(TypedDict):
    """What one lane of a memory holds."""

    steps: dict[str, list[Any]]
    """[text, run id, session id] by step id."""
    maybe: dict[str, list[Any]]
    """Steps that nobody needs any more: gone or still there, but never altered."""
    pinned: list[str]
    """Steps that `forget` leaves."""
    recalled: dict[str, list[str]]
    """Of steps that descend from others: from which."""
    scores: dict[str, float]
    sessions: dict[str, list[str]]
    maybe_sessions: list[str]
    """Sessions that a purge which was cut short may have erased."""
    forks: dict[str, str]
    """Which session each was forked from."""
    erased: list[str]
    """Words that are in no file any more."""


class Actual(TypedDict):
    """What was read."""

    steps: dict[str, str]
    """Texts by step id."""
    pinned: list[str]
    scores: dict[str, float | None]
    sessions: dict[str, list[list[Any]]]
    """[sequence, content] of each message."""


class Entry(NamedTuple):
    """What is noted of one operation."""

    operation: Operation
    acknowledged: bool
    error: str
    """What it raised, empty if nothing or if its process died."""
    typed: bool


class Difference(NamedTuple):
    """One thing that is not as it must be."""

    kind: str
    """lost, silently_changed or half_written."""
    name: str
    what: str


def empty() -> State:
    """Return what a new memory holds."""
    return {
        "steps": {},
        "maybe": {},
        "pinned": [],
        "recalled": {},
        "scores": {},
        "sessions": {},
        "maybe_sessions": [],
        "forks": {},
        "erased": [],
    }


def noted(path: Path) -> list[Entry]:
    """Read a writer's notes; a last line that its death cut short is left out."""
    entries: list[Entry] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        note = json.loads(line)
        if "do" in note:
            entries.append(Entry(note, False, "", True))
        else:
            begun = entries[-1].operation
            error = str(note.get("error", ""))
            entries[-1] = Entry(begun, not error, error, bool(note.get("typed", True)))
    return entries


def right_states(start: State, entries: Iterable[Entry]) -> list[State]:
    """Return every state that is right after these notes, the fullest first."""
    states = [start]
    for entry in entries:
        after = [applied(state, entry.operation) for state in states]
        if entry.acknowledged:
            states = after
        else:
            partly = [cut_short(state, entry.operation) for state in states]
            pairs = zip(after, states, strict=True)
            # Only who was told that it is erased may rely on it.
            done: list[State] = [{**new, "erased": old["erased"]} for new, old in pairs]
            states = [*done, *states, *(state for state in partly if state is not None)]
        assert len(states) <= 300, "too many operations without an answer"
    return states


def applied(state: State, operation: Operation) -> State:
    """Return the state after an operation."""
    new: State = {
        "steps": dict(state["steps"]),
        "maybe": dict(state["maybe"]),
        "pinned": list(state["pinned"]),
        "recalled": dict(state["recalled"]),
        "scores": dict(state["scores"]),
        "sessions": dict(state["sessions"]),
        "maybe_sessions": list(state["maybe_sessions"]),
        "forks": dict(state["forks"]),
        "erased": list(state["erased"]),
    }
    _EFFECTS[operation["do"]](new, operation)
    runs = {run for _, run, _ in new["steps"].values()}
    new["scores"] = {run: score for run, score in new["scores"].items() if run in runs}
    return new


def cut_short(state: State, operation: Operation) -> State | None:
    """Return the state in the middle of an operation that is not promised to be one transaction."""
    if operation["do"] not in ("purge_session", "purge_run"):
        return None
    new = applied(state, {"do": "nothing"})
    gone = state["steps"].keys() - applied(state, operation)["steps"].keys()
    new["maybe"] |= {name: new["steps"].pop(name) for name in gone}
    if operation["do"] == "purge_session":
        new["maybe_sessions"].append(operation["session"])
    return applied(new, {"do": "nothing"})


def _store(state: State, operation: Operation) -> None:
    for step_id, text, run in operation["steps"]:
        state["maybe"].pop(step_id, None)
        state["steps"][step_id] = [text, run, None]
        state["recalled"][step_id] = operation.get("of", [])
    new = {step_id for step_id, _, _ in operation["steps"]}
    state["pinned"] = [name for name in state["pinned"] if name not in new]


def _pin(state: State, operation: Operation) -> None:
    state["pinned"] += operation["ids"]


def _forget(state: State, operation: Operation) -> None:
    going = {name for name, value in state["steps"].items() if value[1] == operation["run"]}
    edge = going
    while edge:  # what recalled one of them goes, too
        of = state["recalled"]
        edge = {name for name in state["steps"] if not edge.isdisjoint(of.get(name, ()))} - going
        going = going | edge
    for name in going - set(state["pinned"]):
        del state["steps"][name]


def _delete(state: State, operation: Operation) -> None:
    for step_id in operation["ids"]:
        state["steps"].pop(step_id, None)


def _clear(state: State, _: Operation) -> None:
    state |= empty()


def _score(state: State, operation: Operation) -> None:
    state["scores"][operation["run"]] = operation["value"]


def _purge_run(state: State, operation: Operation) -> None:
    for name, (text, run, _) in list(state["steps"].items()):
        if run == operation["run"]:
            del state["steps"][name]
            state["erased"].append(text.split()[0])


def _purge_session(state: State, operation: Operation) -> None:
    name = operation["session"]
    contents = state["sessions"].pop(name, [])
    shared = name in state["forks"] or name in state["forks"].values()
    if not shared:  # else another session may still read it
        state["erased"] += [said.split()[0] for said in contents]
    for step_id, value in list(state["steps"].items()):
        if value[2] == name:
            del state["steps"][step_id]
            if shared:
                state["maybe"][step_id] = value


def _commit(state: State, operation: Operation) -> None:
    name = operation["session"]
    state["sessions"][name] = [*state["sessions"].get(name, []), *operation["contents"]]
    for step_id, text, run in operation.get("steps", ()):
        state["steps"][step_id] = [text, run, name]


def _cut(state: State, operation: Operation) -> None:
    """Hide the end of a session; steps that stood behind what is hidden may be vacuumed."""
    name, last = operation["session"], operation["last"]
    hidden = state["sessions"][name][last:]
    state["sessions"][name] = [*state["sessions"][name][:last], *operation.get("contents", ())]
    words = {said.split()[0] for said in hidden}
    for step_id, value in list(state["steps"].items()):
        if value[2] == name and value[0].split()[0] in words:
            state["maybe"][step_id] = state["steps"].pop(step_id)


def _fork(state: State, operation: Operation) -> None:
    shared = state["sessions"][operation["session"]][: operation["last"]]
    state["sessions"][operation["new"]] = shared
    state["forks"][operation["new"]] = operation["session"]


def _nothing(_: State, __: Operation) -> None:
    """What changes nothing that can be read."""


_EFFECTS = {
    **dict.fromkeys(("add", "batch", "update", "import", "keep_prompts"), _store),
    "delete": _delete,
    "clear": _clear,
    "score": _score,
    "pin": _pin,
    "forget": _forget,
    "purge_run": _purge_run,
    "purge_session": _purge_session,
    **dict.fromkeys(("append", "commit", "save_step", "save_batch"), _commit),
    **dict.fromkeys(("retry", "delete_steps"), _cut),
    "fork": _fork,
    **dict.fromkeys(("consolidate", "vacuum", "flush", "reembed", "search", "nothing"), _nothing),
}


def nearest(states: Sequence[State], actual: Actual) -> tuple[State, list[Difference]]:
    """Return the right state that a memory comes nearest to, and how it differs from that."""
    compared = ((state, differences(state, actual)) for state in states)
    best: tuple[State, list[Difference]] | None = None
    for state, found in compared:
        if best is None or len(found) < len(best[1]):
            best = state, found
        if not found:
            break
    assert best is not None
    return best


def differences(state: State, actual: Actual) -> list[Difference]:
    """Return what is wrong with what was read."""
    return [*_of_steps(state, actual), *_of_sessions(state, actual), *_of_scores(state, actual)]


def _of_steps(state: State, actual: Actual) -> Iterable[Difference]:
    read = actual["steps"]
    for step_id, (text, _, _) in state["steps"].items():
        if step_id not in read:
            yield Difference("lost", step_id, "an acknowledged step is not there")
        elif read[step_id] != text:
            yield Difference("silently_changed", step_id, _changed(text, read[step_id]))
        elif (step_id in state["pinned"]) != (step_id in actual["pinned"]):
            yield Difference("silently_changed", step_id, "it is pinned and was not, or it was")
    for step_id in read.keys() - state["steps"].keys():
        if step_id not in state["maybe"]:
            yield Difference("half_written", step_id, "a step that should not be there")
        elif read[step_id] != state["maybe"][step_id][0]:
            text = str(state["maybe"][step_id][0])
            yield Difference("silently_changed", step_id, _changed(text, read[step_id]))


def _changed(text: str, read: str) -> str:
    at = next((n for n, pair in enumerate(zip(text, read, strict=False)) if len(set(pair)) > 1), -1)
    return f"its text differs from character {at}: {read[max(at, 0) :][:20]!r}"


def _of_sessions(state: State, actual: Actual) -> Iterable[Difference]:
    read = actual["sessions"]
    for name, contents in state["sessions"].items():
        if name not in read and contents and name not in state["maybe_sessions"]:
            yield Difference("lost", name, "an acknowledged session is not there")
    for name, messages in read.items():
        if name in state["maybe_sessions"]:
            continue
        said, expected = [content for _, content in messages], state["sessions"].get(name, [])
        if [sequence for sequence, _ in messages] != list(range(1, len(messages) + 1)):
            yield Difference("half_written", name, "its sequences have a gap or a duplicate")
        if said == expected:
            continue
        if said == expected[: len(said)]:
            yield Difference("lost", name, f"{len(expected) - len(said)} messages are not there")
        elif said[: len(expected)] == expected:
            yield Difference("half_written", name, "messages that should not be there")
        else:
            yield Difference("silently_changed", name, "its messages say something else")


def _of_scores(state: State, actual: Actual) -> Iterable[Difference]:
    for run, value in state["scores"].items():
        if actual["scores"].get(run) != value:
            found = actual["scores"].get(run)
            yield Difference("lost", run, f"its score is {found}, not {value}")


def words_erased(states: Sequence[State], last: int) -> list[str]:
    """Return the words that all these states say were erased, the last ones."""
    common = set(states[0]["erased"]).intersection(*(state["erased"] for state in states))
    return list(itertools.islice(reversed([w for w in states[0]["erased"] if w in common]), last))

"""What a person wants to see of a step: one line first, details on request.

Turns a step's JSON data, of whatever shape, into a `StepView` of short plain texts; nothing here
is HTML and nothing raises on odd data, because what is shown may come from anywhere. Programs are
nested by `program_id`; nesting deeper than `MAX_DEPTH`, and loops, are flattened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hybridagi_steps.display.titles import LINE, UNASKED, as_text, fields, json_text, line, title_of

MAX_DEPTH = 16
"""Deepest nesting of programs shown."""
BLOCK = 4_000
"""Most characters of a value among the details."""

_HUGE = 1e18
_SHORT, _LEAST_OF_EACH = 80, 20

KINDS = {
    "Action": "action",
    "Decision": "decision",
    "ProgramCall": "call",
    "ProgramEnd": "end",
}
"""Step types and the short names under which they are styled."""


@dataclass(slots=True)
class StepView:
    """One step as texts."""

    id: str
    kind: str
    style: str
    hop: str
    title: str
    """What it is called."""
    about: str
    """Its question or first argument, when the title does not say it already."""
    outcome: str
    """What came of it, in one line."""
    status: str
    """How it ended, when not well."""
    facts: list[str]
    """Duration, tokens, cost, score."""
    sections: list[tuple[str, str]]
    """Details: name and text."""
    after: str = ""
    """The step it follows, when that is not the one shown before it."""
    children: list[StepView] = field(default_factory=list["StepView"])


@dataclass(slots=True)
class HitView:
    """One search hit as texts."""

    rank: int
    score: str
    percent: int
    """Width of the score bar, 0..100."""
    why: str
    parts: str
    """The scores of both halves."""
    step: StepView
    context: list[StepView]


def step_view(step: Mapping[str, Any]) -> StepView:
    """Return one step as texts, without children."""
    kind = as_text(step.get("step_type")) or "Step"
    inputs, outputs = fields(step.get("inputs")), fields(step.get("outputs"))
    title = title_of(step)
    status = as_text(step.get("status"))
    return StepView(
        id=as_text(step.get("id")),
        kind=kind,
        style=KINDS.get(kind, "other"),
        hop=as_text(step.get("hop")),
        title=title.name or title.about,
        about=title.about if title.name else "",
        outcome=outcome(outputs),
        status="" if status == "ok" else status,
        facts=facts(step),
        sections=_sections(step, inputs, outputs),
    )


def step_line(step: Mapping[str, Any]) -> str:
    """Return one step as a line without its id: its place, what was done, what came of it."""
    view = step_view(step)
    told = [view.hop, view.kind, view.title, view.status, view.about]
    text = " ".join(filter(None, told))
    return line(f"{line(text, _SHORT)} → {view.outcome}" if view.outcome else text, 2 * _SHORT - 30)


def hit_view(rank: int, hit: Mapping[str, Any]) -> HitView:
    """Return one hit as texts."""
    score = _number(hit.get("score")) or 0.0
    halves = [("meaning", hit.get("dense_score")), ("words", hit.get("lexical_score"))]
    found = [(name, _number(value)) for name, value in halves]
    context = hit.get("context")
    around = cast("list[Any]", context) if isinstance(context, list) else []
    return HitView(
        rank=rank,
        score=f"{score:.3f}",
        percent=round(100 * min(1.0, max(0.0, score))),
        why=as_text(hit.get("why")),
        parts=" · ".join(f"{name} {value:.2f}" for name, value in found if value is not None),
        step=step_view(fields(hit.get("step"))),
        context=[step_view(fields(step)) for step in around],
    )


def tree_view(steps: Sequence[Mapping[str, Any]]) -> list[StepView]:
    """Return steps as trees: a step stands inside the program that made it, if that is shown.

    Steps of several runs stand below their runs.
    """
    known = {as_text(s.get("id")): s for s in steps}
    enclosing = {as_text(s.get("id")): _home_of(s) for s in steps}
    shown = [step_view(s) for s in steps]
    views = {view.id: view for view in shown}
    last_in: dict[str, StepView] = {}
    roots: list[StepView] = []
    for step, view in zip(steps, shown, strict=True):
        program = enclosing[view.id]
        inside = program in views and _depth(view.id, enclosing) <= MAX_DEPTH
        home = program if inside else ""
        place = home or as_text(step.get("run_id"))
        before = last_in.get(place) or views.get(home)
        view.after = _after(as_text(step.get("parent_id")), views, before)
        (views[home].children if inside else roots).append(view)
        last_in[place] = view
    return _by_run(roots, known)


def _by_run(roots: list[StepView], steps: Mapping[str, Mapping[str, Any]]) -> list[StepView]:
    """Return roots below their runs, each with its id and its time, if there are several."""
    runs: dict[str, list[StepView]] = {}
    for root in roots:
        runs.setdefault(as_text(steps[root.id].get("run_id")), []).append(root)
    if len(runs) < 2:
        return roots
    found = runs.pop("", [])
    for run_id, inside in runs.items():
        began = as_text(steps[inside[0].id].get("created_at"))[:16].replace("T", " ")
        found.append(
            StepView(run_id, "run", "other", "", run_id, began, "", "", [], [], children=inside)
        )
    return found


def _home_of(step: Mapping[str, Any]) -> str:
    """Return the id of the tool or program that a step stands directly inside."""
    return as_text(fields(step.get("metadata")).get("within") or step.get("program_id"))


def run_view(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return one run as texts."""
    errors, score = _number(run.get("errors")) or 0, _number(run.get("score"))
    told = [plural(round(_number(run.get("steps")) or 0), "step")]
    told += [] if score is None else [f"score {score:.2g}"]
    status = as_text(run.get("status"))
    return {
        "id": as_text(run.get("run_id")),
        "title": as_text(run.get("title")),
        "status": "" if status == "completed" else status,
        "errors": plural(round(errors), "error") if errors and status != "failed" else "",
        "facts": " · ".join([*told, as_text(run.get("started_at"))[:16].replace("T", " ")]),
    }


def session_view(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return one session as texts."""
    written = as_text(session.get("updated_at"))[:16].replace("T", " ")
    return {
        "id": as_text(session.get("session_id")),
        "title": as_text(session.get("title") or session.get("first_message")),
        "status": "",
        "errors": "",
        "facts": f"{session_holds(session)} · {written}",
    }


def session_holds(session: Mapping[str, Any]) -> str:
    """Return what a session has: its messages, or runs that were recorded under its name."""
    runs = round(_number(session.get("runs")) or 0)
    messages = round(_number(session.get("messages")) or 0)
    return plural(runs, "run") if runs else plural(messages, "message")


def facts(step: Mapping[str, Any]) -> list[str]:
    """Return what a step cost and how good it was, each as a short text."""
    metrics = fields(step.get("metrics"))
    found: list[str] = []
    if (milliseconds := _number(metrics.get("duration_ms"))) is not None:
        found.append(duration(milliseconds))
    if (tokens := _number(metrics.get("total_tokens"))) is None:
        halves = [_number(metrics.get(key)) for key in ("input_tokens", "output_tokens")]
        counted = [half for half in halves if half is not None]
        tokens = sum(counted) if counted else None
    if tokens is not None:
        found.append(plural(round(tokens), "token"))
    if cost := _number(metrics.get("cost")):
        found.append(f"${cost:.4f}")
    if (score := _number(step.get("score"))) is not None:
        found.append(f"score {score:.2g}")
    return found


def duration(milliseconds: float) -> str:
    """Return a time span as people write it: 3 ms, 1.2 s, 2 min 5 s."""
    if milliseconds < 1_000:
        return f"{milliseconds:.2g} ms" if milliseconds < 1 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 step, 1,200 steps."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def outcome(outputs: Mapping[str, Any]) -> str:
    """Return what came of a step in one line: its answers, all of them."""
    error = outputs.get("error")
    if isinstance(error, dict):
        said = cast("dict[str, Any]", error)
        return line(f"{as_text(said.get('type', 'error'))}: {as_text(said.get('message', ''))}")
    for key in ("result", "observation", "choice"):
        if key in outputs:
            return line(outputs[key])
    answers = {key: value for key, value in outputs.items() if key not in UNASKED} or outputs
    if len(answers) == 1:
        return line(next(iter(answers.values())))
    length = max(_LEAST_OF_EACH, LINE // max(1, len(answers)) - _LEAST_OF_EACH)
    return line(", ".join(f"{as_text(key)}: {line(answers[key], length)}" for key in answers))


def _sections(
    step: Mapping[str, Any], inputs: dict[str, Any], outputs: dict[str, Any]
) -> list[tuple[str, str]]:
    named = {
        "inputs": inputs,
        "outputs": outputs,
        "metrics": {k: v for k, v in fields(step.get("metrics")).items() if v is not None},
        "metadata": fields(step.get("metadata")),
    }
    known = ("id", "parent_id", "run_id", "session_id", "user_id", "scope", "created_at")
    origin = "\n".join(f"{key}: {text}" for key in known if (text := as_text(step.get(key))))
    sections = [(name, block(values)) for name, values in named.items() if values]
    return [*sections, ("step", origin)] if origin else sections


def block(value: object) -> str:
    """Return a value over several lines, at most `BLOCK` characters, saying what is cut."""
    text = value if isinstance(value, str) else _readable(value)
    if len(text) <= BLOCK:
        return text
    return f"{text[:BLOCK]}\n… {len(text) - BLOCK:,} more characters"


def _readable(value: object) -> str:
    """Return JSON data as an indented outline that keeps texts as they are."""
    if not isinstance(value, dict):
        return json_text(value, indent=2)
    lines: list[str] = []
    for name, item in cast("dict[Any, Any]", value).items():
        key = as_text(name)
        text = item if isinstance(item, str) else _compact(item)
        indented = text.replace("\n", "\n  ")
        lines.append(f"{key}: {indented}" if "\n" not in text else f"{key}:\n  {indented}")
    return "\n".join(lines)


def _compact(value: object) -> str:
    """Return JSON data on one line if it is short, else indented."""
    text = json_text(value, indent=None)
    return text if len(text) <= _SHORT else json_text(value, indent=2)


def _after(parent: str, views: dict[str, StepView], before: StepView | None) -> str:
    """Name the step that a step follows, unless it is the one shown before it."""
    if parent not in views or before is None or before.id == parent or not before.hop:
        return ""
    last = before
    while last.children:
        last = last.children[-1]
    return "" if last.id == parent else f"after {views[parent].hop}"


def _depth(step: str, enclosing: dict[str, str]) -> int:
    """Count the programs around a step, stopping just above `MAX_DEPTH`: loops count as deep."""
    depth = 0
    while depth <= MAX_DEPTH and (step := enclosing.get(step, "")) in enclosing:
        depth += 1
    return depth


def _number(value: object) -> float | None:
    """Return a number of ordinary size, None for anything else."""
    return float(value) if isinstance(value, int | float) and abs(value) < _HUGE else None


def call_view(call: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]], str]:
    """Return an LMCall's title, its messages with what came back as the last, and its tools."""
    settings = [f"{name} {value}" for name, value in call.get("settings", {}).items()]
    title = " · ".join([str(call.get("lm") or "a language model"), *settings])
    error = call.get("error")
    answers: Any = [f"failed: {error}"] if error else call.get("completion") or []
    several = cast("list[object]", answers if isinstance(answers, list) else [answers])
    said = [{"role": "assistant", "content": _spoken(answer)} for answer in several]
    sent = [
        {**message, "content": _spoken(message.get("content", message.get("parts")))}
        for message in call.get("messages", [])
    ]
    names = [(tool.get("function") or tool).get("name", "") for tool in call.get("tools", [])]
    return title, [*sent, *said], ", ".join(names)


def _spoken(content: object) -> object:
    """Return the parts of a message as one text, where all of them are texts."""
    parts = cast("list[object]", content) if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        fields = cast("dict[str, Any]", part if isinstance(part, dict) else {})
        if not fields or {*fields} - {"text", "type"} or "text" not in fields:
            return cast("object", content)
        texts.append(str(fields["text"]))
    return "\n".join(texts)

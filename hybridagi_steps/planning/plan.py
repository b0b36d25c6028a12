"""Plan: a requirement cut into small steps that know what they need and what they hand on.

A plan is a plain value. It can say what is wrong with it, in which order its steps may run and what
hangs on a step, and write itself as text; it runs nothing and reads no file. plan_parser.py reads
what others write. Nothing is refused on construction that a person may want to look at and mend:
`check` is what a plan must pass before anything is spent on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from hybridagi_steps.errors import InvalidPlanError, PlanParseError
from hybridagi_steps.graph.nodes import reached
from hybridagi_steps.planning.artifact_types import check_shape, clean_name
from hybridagi_steps.planning.plan_parser import STEP_ID, read_plan, refusal, write_plan

T = TypeVar("T")

MOST_CIRCLES_NAMED = 10
MOST_NAMES_LISTED = 20
MOST_STEPS_DRAWN = 60
MOST_STEPS_LISTED = 200

_DRIVE = re.compile(r"[A-Za-z]:")
_HTML = """\
<div class='hybridagi-steps-plan'>
<p><strong>{{ plan.name or "plan" }}</strong> · {{ plan.steps | length }} steps</p>
<p style='white-space:pre-wrap'>{{ plan.description }}</p>
{% if problems %}<p>This plan cannot be run:</p>
<ul>{% for problem in problems %}<li>{{ problem }}</li>{% endfor %}</ul>{% endif %}
{{ graph | safe }}
<style>.hybridagi-steps-plan :is(th, td)
  {text-align: left; vertical-align: top; padding: .2em .6em}</style>
<table>
<tr><th>step<th>type<th>goal<th>files<th>waits for<th>hands on</tr>
{% for step in shown %}
<tr><td>{{ step.id }}<td>{{ step.type.value }}<td>{{ step.goal }}<td>{{ step.files | join(", ") }}
<td>{{ step.dependencies | join(", ") }}<td>{{ step.artifacts | join(", ") }}</tr>
{% endfor %}
</table>
{% if plan.steps | length > shown | length %}
<p>… and {{ plan.steps | length - shown | length }} more steps</p>{% endif %}
</div>
"""


_THOUGHT = re.compile(r".*</(?:think|thinking|thought|reasoning)>", re.DOTALL | re.IGNORECASE)


class PlanStepType(StrEnum):
    """What kind of work a step is."""

    ANALYZE = "analyze"
    GENERATE = "generate"
    MODIFY = "modify"
    VALIDATE = "validate"
    CLEANUP = "cleanup"


def clean_text(value: T) -> T | str:
    """Return a text with plain line ends, no blanks before them, no blank edges; else as it is."""
    if not isinstance(value, str):
        return value
    plain = value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return "\n".join(line.rstrip() for line in plain.split("\n")).strip()


def _step_id(value: str) -> str:
    if STEP_ID.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is no step id: use letters, digits, '_', '-' and '.', at most 100"
        )
    return value


Text = Annotated[str, BeforeValidator(clean_text)]
Name = Annotated[str, BeforeValidator(clean_name)]
ArtifactName = Annotated[str, BeforeValidator(clean_name), Field(min_length=1)]
StepId = Annotated[str, BeforeValidator(clean_text), AfterValidator(_step_id)]


class PlanStep(BaseModel):
    """One planned unit of work, small enough to be done with minimal context."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

    id: StepId
    """Unique within the plan."""
    type: PlanStepType = PlanStepType.GENERATE
    """What kind of work it is."""
    name: Name = ""
    """A short title for people."""
    goal: Annotated[Text, Field(min_length=1)]
    """What holds when the step is done."""
    description: Text = ""
    """How to get there, any number of lines."""
    files: list[str] = []
    """Files whose contents the step sees, relative to the workspace, with `/`."""
    dependencies: list[StepId] = []
    """Ids of the steps that must have succeeded before."""
    needs: list[ArtifactName] = []
    """The artifacts of earlier steps that it sees; none named: all those of its dependencies."""
    artifacts: list[ArtifactName] = []
    """Names of what it hands on."""
    shapes: dict[ArtifactName, Annotated[Any, AfterValidator(check_shape)]] = {}
    """The shape each artifact must have; see artifact_types.py. No entry: any value."""
    notes: dict[ArtifactName, Name] = {}
    """What an artifact is, in words, for the step that makes it."""

    @property
    def title(self) -> str:
        """The step's name, else its id."""
        return self.name or self.id


class Plan(BaseModel):
    """A requirement cut into steps, with what each step needs and hands on."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")

    name: Name = ""
    """A short title."""
    description: Text = ""
    """What the whole plan is for."""
    steps: list[PlanStep] = []
    """The steps, in the order they were planned."""

    @classmethod
    def parse(cls, text: str, *, check: bool = True) -> Plan:
        """Read a plan from its text or JSON form, as people and language models write it.

        Args:
            text: The plan; markdown around and inside it, text before and after it, what a model
                thought before it (up to `</think>`), and a missing END_PLAN are all understood.
            check: Refuse a plan that cannot be run, as `check()` does.

        Raises:
            PlanParseError: It cannot be read; names line and field.
            InvalidPlanError: It can be read and not be run; names every problem.
        """
        data, lines = read_plan(_unthought(text) if isinstance(text, str) else text)  # pyright: ignore[reportUnnecessaryIsInstance]
        try:
            plan = cls.model_validate(data)
            plan.model_dump_json()
        except ValidationError as error:
            raise refusal(error, lines) from error
        except PydanticSerializationError as error:
            raise PlanParseError(
                "the plan holds a lone surrogate, half of a character that neither a model nor a "
                "file can be given; write the character itself."
            ) from error
        if check:
            plan.check()
        return plan

    def to_text(self) -> str:
        """Return the plan in its text form; `parse` gives back an equal plan."""
        return write_plan(self.model_dump(mode="json"))

    def check(self) -> None:
        """Pass if the plan can be run.

        Raises:
            InvalidPlanError: It cannot; `problems` holds all that is wrong, not only the first.
        """
        if problems := self.problems():
            raise InvalidPlanError(problems)

    def problems(self) -> list[str]:
        """Return all that keeps the plan from being run, one line each."""
        if not self.steps:
            return ["the plan has no steps"]
        ids = self._ids()
        counts = Counter(step.id for step in self.steps)
        makers: dict[str, list[str]] = {}
        for step in self.steps:
            for artifact in step.artifacts:
                makers.setdefault(artifact, []).append(step.id)
        of_steps = [
            f"step {step.id!r}: {problem}"
            for step in self.steps
            for problem in (
                *_dependency_problems(step, ids, counts),
                *self._need_problems(step, makers),
                *filter(None, map(file_problem, step.files)),
                *_artifact_problems(step),
            )
        ]
        twice = [f"{n} steps have the id {name!r}" for name, n in counts.items() if n > 1]
        return [*twice, *of_steps, *self._cycles()]

    def step(self, step_id: str) -> PlanStep:
        """Return the step with this id.

        Raises:
            InvalidPlanError: There is none.
        """
        for step in self.steps:
            if step.id == step_id:
                return step
        raise InvalidPlanError([f"no step has the id {step_id!r}; {_listed(self._ids())}"])

    def upstream(self, step_id: str) -> set[str]:
        """Return the ids of all steps that this one waits for, directly or not.

        The step itself is among them only in a circle.
        """
        waits_for = {step.id: step.dependencies for step in self.steps}
        return set(reached(waits_for.get(step_id, ()), lambda name: waits_for.get(name, ())))

    def to_mermaid(self) -> str:
        """Return the steps and what they wait for as a Mermaid flowchart."""
        from hybridagi_steps.display.mermaid import graph_mermaid

        nodes = [{"id": s.id, "label": s.title, "kind": s.type.value} for s in self.steps]
        return graph_mermaid(nodes, _edges(self.steps))

    def __str__(self) -> str:
        """The plan's text form."""
        return self.to_text()

    def _repr_html_(self) -> str:
        """Show the plan and its dependencies in a notebook."""
        from jinja2 import Environment

        nodes = [
            {"id": step.id, "label": step.title, "kind": step.type.value, "title": step.goal}
            for step in self.steps
        ]
        html = (
            Environment(autoescape=True)
            .from_string(_HTML)
            .render(
                plan=self,
                problems=self.problems(),
                graph=drawn(self.steps, nodes, MOST_STEPS_DRAWN),
                shown=self.steps[:MOST_STEPS_LISTED],
            )
        )
        return html.encode("utf-8", "replace").decode()  # a notebook stores no lone surrogates

    def _ids(self) -> dict[str, int]:
        """Return every id and where it stands first."""
        ids: dict[str, int] = {}
        for place, step in enumerate(self.steps):
            ids.setdefault(step.id, place)
        return ids

    def _need_problems(self, step: PlanStep, makers: dict[str, list[str]]) -> list[str]:
        if not step.needs:
            return []
        before = self.upstream(step.id) - {step.id}
        problems: list[str] = []
        for need in step.needs:
            if need not in makers:
                problems.append(f"needs the artifact {need!r}, which no step makes")
            elif before.isdisjoint(makers[need]):
                maker = makers[need][0]
                problems.append(
                    f"needs the artifact {need!r} of step {maker!r} without depending on it"
                )
        return problems

    def _cycles(self) -> list[str]:
        known = self._ids()
        waiting = {
            step.id: [name for name in step.dependencies if name in known and name != step.id]
            for step in self.steps
        }
        problems: list[str] = []
        while len(problems) < MOST_CIRCLES_NAMED:
            try:
                TopologicalSorter(waiting).prepare()
            except CycleError as error:
                circle: list[str] = error.args[1][::-1]
                problems.append(f"the dependencies go in a circle: {self._written(circle)}")
                # Cut this circle at one place and look for the next.
                waiting[circle[0]] = [name for name in waiting[circle[0]] if name != circle[1]]
            else:
                break
        return problems

    def _written(self, circle: list[str]) -> str:
        """Write a circle so that it starts where the plan enters it first."""
        ids, around = self._ids(), circle[:-1]
        start = min(range(len(around)), key=lambda place: ids[around[place]])
        return " → ".join([*around[start:], *around[:start], around[start]])


def _unthought(text: str) -> str:
    """Return a text with blank lines in place of what a model thought before its answer."""
    thought = _THOUGHT.match(text)
    if thought is None or not text[thought.end() :].strip():
        return text
    return "\n" * thought[0].count("\n") + text[thought.end() :]


def drawn(steps: Sequence[PlanStep], nodes: list[dict[str, Any]], most: int) -> str:
    """Return the graph of steps that are drawn as these nodes; nothing of none."""
    from hybridagi_steps.display.graph import graph_svg

    return graph_svg(nodes, _edges(steps), limit=most) if nodes else ""


def _edges(steps: Sequence[PlanStep]) -> list[dict[str, str]]:
    return [{"source": name, "target": step.id} for step in steps for name in step.dependencies]


def file_problem(path: str) -> str | None:
    """Return why a file named in a plan is outside any workspace, None when it is inside."""
    if not path.strip() or "\0" in path:
        return f"the file name {path!r} is empty or holds a NUL"
    parts = path.replace("\\", "/").split("/")
    if not parts[0] or parts[0].startswith("~") or _DRIVE.match(parts[0]):
        return f"the file {path!r} is outside the workspace; name it relative to the workspace"
    if ".." in parts:
        return f"the file {path!r} leaves the workspace with '..'"
    return None


def _dependency_problems(
    step: PlanStep, known: Mapping[str, int], counts: Mapping[str, int]
) -> list[str]:
    problems: list[str] = []
    for name in dict.fromkeys(step.dependencies):
        if name == step.id and counts[name] == 1:  # else it may be meant to name its namesake
            problems.append("depends on itself")
        elif name not in known:
            problems.append(f"depends on the unknown step {name!r}; {_listed(known)}")
    return problems


def _artifact_problems(step: PlanStep) -> list[str]:
    twice = {name for name in step.artifacts if step.artifacts.count(name) > 1}
    spare = {*step.shapes, *step.notes} - set(step.artifacts)
    return [
        *(f"names the artifact {name!r} twice" for name in sorted(twice)),
        *(f"describes the artifact {name!r}, which it does not make" for name in sorted(spare)),
    ]


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(islice(names, MOST_NAMES_LISTED))
    return f"known are {shown}" + (" …" if len(names) > MOST_NAMES_LISTED else "")

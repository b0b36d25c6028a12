"""The same questions of quality about anybody's runs: `quality --runs FILE --questions FILE`.

Runs are read as `import_file` reads them: steps that were exported, traces, chats. Questions are
JSON objects, one a line or in a list: `question`; `relevant`, ids of the steps or messages that
answer it; and, if wanted, `aim` (with it, for what to do next, `state`: the step before),
`exclude_run` (a run that is kept out of the answer, such as the one that asks) and `kind`, a name
under which questions are also reported by themselves. A message is named by its id, or by its
session and place, as `conversation-1#12`.

Questions about messages are asked of the chat in its three forms; questions about steps of the runs
as they are. An id that nothing has is an error that names the line: half a benchmark misleads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange.importer import import_file
from hybridagi_steps.exchange.reader import opened
from hybridagi_steps.exchange.records import Skipped
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_reading import text_of
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.records.step_text import own_text, text_hash
from tests.benchmarks.quality_dialogue import Turn, TurnQuestion, dialogue_quality
from tests.benchmarks.quality_evidence import Evidence, EvidenceQuestion, evidence_recall, plain
from tests.benchmarks.quality_searches import Searches
from tests.benchmarks.ranking import Values, interval, interval_text, ndcg, recall, reciprocal_rank
from tests.benchmarks.retrieval_tasks import Aim, Question
from tests.benchmarks.tables import Table

CUT = 10
PLAINLY, AIMED = "no aim", "the question's aim"

_SPOKEN = (MessageRole.USER, MessageRole.ASSISTANT)
_EVERY = 2**62
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class OwnQuestion(BaseModel):
    """One line of a file of questions."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    question: _Text
    """What is asked."""
    relevant: list[_Text] = Field(min_length=1)
    """Ids of the steps, or of the messages, that answer it."""
    aim: Aim | None = None
    """What the search is for."""
    state: str | None = None
    """The id of the step after which somebody asks what to do next."""
    exclude_run: str | None = None
    """A run that is kept out of the answer."""
    kind: str = ""
    """A name under which questions are also reported by themselves."""

    @model_validator(mode="after")
    def _what_follows_needs_a_state(self) -> OwnQuestion:
        if (self.aim == "next") != (self.state is not None):
            raise ValueError('aim "next" and state, the id of the step before, go together')
        return self


class Runs(NamedTuple):
    """What a file of runs holds."""

    steps: dict[str, AgentStep]
    """By id."""
    turns: dict[str, Turn]
    """By the id of the message, and by session and place."""


class Asked(NamedTuple):
    """Questions by what they are about; each with the line it stands on."""

    about_steps: list[tuple[OwnQuestion, list[AgentStep]]]
    about_turns: list[tuple[OwnQuestion, list[Turn]]]


def own_quality(runs: Path, questions: Path, embedder: str) -> dict[str, Any]:
    """Return how well the steps and turns of a file are found, and what contexts hold of them.

    Raises:
        ExchangeError: A file that cannot be read, a line that is no question, or an id that nothing
            has; the line is named.
    """
    asked = read_questions(questions)
    with StepMemory(":memory:", embedder=embedder) as memory:
        report = import_file(memory, runs)
        if not report.added:
            why = report.skipped[0][1] if report.skipped else "it holds none"
            raise ExchangeError(f"{runs}: no step or message could be imported: {why}.")
        memory.flush()
        held = runs_of(memory)
        about = _resolved(asked, held, questions)
        found: dict[str, Any] = {"steps": len(held.steps), "turns": len(set(held.turns.values()))}
        found |= {"not_imported": report.skipped_count, "notes": list(report.notes)}
        if about.about_steps:
            found["tasks"] = _found_steps(memory, about.about_steps, held.steps)
        found["evidence"] = evidence_recall(memory, [*held.steps.values()], list(_evidence(about)))
    if about.about_turns:
        turns = list(dict.fromkeys(held.turns.values()))
        found["dialogue"] = dialogue_quality(embedder, turns, _turn_questions(about), runs)
    return found


def read_questions(file: Path) -> list[tuple[int, OwnQuestion]]:
    """Return the questions of a file, each with its line.

    Raises:
        ExchangeError: The file cannot be read, holds none, or one that is none.
    """
    found: list[tuple[int, OwnQuestion]] = []
    with opened(file) as source:
        for record in source.records():
            place = f"{file}, line {record.line}"
            if isinstance(record, Skipped):
                raise ExchangeError(f"{place}: {record.reason}.")
            try:
                found.append((record.line, OwnQuestion.model_validate(record.value)))
            except ValidationError as error:
                raise ExchangeError(f"{place}: {record.place}{_what_is_wrong(error)}") from error
    if not found:
        raise ExchangeError(f"{file} holds no question.")
    return found


def _what_is_wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    form = '{"question": "…", "relevant": ["an id", …]}'
    return f"{f'{where}: ' if where else ''}{first['msg']}; a question is {form}."


def runs_of(memory: StepMemory) -> Runs:
    """Return the steps and turns that a memory holds."""
    store = memory.repository().store
    turns: dict[str, Turn] = {}
    for session in store.sessions(limit=_EVERY):
        for message in store.messages(session.session_id):
            if message.role in _SPOKEN and text_of(message.content).strip():
                turn = _turn(message, session.session_id)
                turns[message.id] = turns[f"{session.session_id}#{message.sequence}"] = turn
    return Runs({id_text(step.id): step for step in memory.iter_steps()}, turns)


def _turn(message: Step, session_id: str) -> Turn:
    text = text_of(message.content)
    return Turn(session_id, message.name or "", text, message.role, message.created_at)


def _resolved(asked: Iterable[tuple[int, OwnQuestion]], held: Runs, file: Path) -> Asked:
    """Return questions with what their ids name."""
    about = Asked([], [])
    for line, question in asked:
        turns = [held.turns[key] for key in question.relevant if key in held.turns]
        steps = [held.steps[key] for key in map(id_text, question.relevant) if key in held.steps]
        unknown = [
            key
            for key in (*question.relevant, *filter(None, [question.state]))
            if id_text(key) not in held.steps and (key not in held.turns or key == question.state)
        ]
        if unknown:
            raise ExchangeError(
                f"{file}, line {line}: nothing in the runs has the id {unknown[0]!r}; it is that "
                'of a step or a message, or a session and a place in it, as "conversation-1#12".'
            )
        if turns and steps:
            raise ExchangeError(
                f"{file}, line {line}: relevant are either steps or messages, not both."
            )
        if turns:
            about.about_turns.append((question, turns))
        else:
            about.about_steps.append((question, steps))
    return about


def _found_steps(
    memory: StepMemory,
    asked: Sequence[tuple[OwnQuestion, list[AgentStep]]],
    held: Mapping[str, AgentStep],
) -> dict[str, Any]:
    """Return nDCG, recall and reciprocal rank, without an aim and with the one a question names."""
    searches = Searches(memory)
    found: dict[str, dict[str, Values]] = {}
    for own, steps in asked:
        wanted = frozenset(text_hash(own_text(step)) for step in steps)
        cluster = _cluster(steps[0])
        state = held[id_text(own.state)] if own.state else None
        unseen = own.exclude_run or ""
        question = Question(own.question, unseen, bool(unseen), wanted, state)
        ways: dict[str, Aim | None] = {PLAINLY: None, AIMED: own.aim}
        for way, aim in ways.items():
            hits = searches.hits(question, CUT, aim)
            ranked = [text_hash(own_text(hit.step)) for hit in hits]
            for row in (way, f"{way}: {own.kind}") if own.kind else (way,):
                values = found.setdefault(row, {"ndcg": {}, "recall": {}, "mrr": {}})
                for name, measure in (("ndcg", ndcg), ("recall", recall), ("mrr", reciprocal_rank)):
                    values[name].setdefault(cluster, []).append(measure(ranked, wanted, CUT))
    return {
        "questions": len(asked),
        "runs": len({_cluster(steps[0]) for _, steps in asked}),
        "ways": {
            row: {name: interval(each)._asdict() for name, each in values.items()}
            for row, values in sorted(found.items())
        },
    }


def _cluster(step: AgentStep) -> str:
    return step.run_id or step.session_id or id_text(step.id)


def _evidence(about: Asked) -> Iterator[EvidenceQuestion]:
    for question, steps in about.about_steps:
        needed = tuple(Evidence(id_text(step.id)) for step in steps)
        yield EvidenceQuestion(question.question, _cluster(steps[0]), needed)
    for question, turns in about.about_turns:
        said = tuple(Evidence(None, frozenset({plain(turn.text)})) for turn in turns)
        yield EvidenceQuestion(question.question, turns[0].session_id, said)


def _turn_questions(about: Asked) -> list[TurnQuestion]:
    return [
        TurnQuestion(
            own.question,
            turns[0].session_id,
            frozenset(turn.key for turn in turns),
            kind=own.kind,
        )
        for own, turns in about.about_turns
    ]


def own_tasks_table(found: Mapping[str, Any]) -> Table:
    """Return how well the steps of a file of runs are found."""
    rows = [
        [row, *(interval_text(each[name]) for name in ("ndcg", "recall", "mrr"))]
        for row, each in found["ways"].items()
    ]
    columns = ["", f"nDCG@{CUT} [95 %]", f"recall@{CUT} [95 %]", "MRR [95 %]"]
    return Table(f"steps: {found['questions']} questions, {found['runs']} runs", columns, rows)

"""One predictor per node that teleprompters optimise, how it is asked, and what its answer means.

A node's predictor is found by the node's own place, `program.node`, never by the order in which a
run came by. So what was learned for one node serves that node, whatever way a run takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from hybridagi_steps.errors import DecisionError, ProgramError, ToolInputError, UnknownToolError
from hybridagi_steps.graph.checks import label_key
from hybridagi_steps.graph.nodes import Action, Decision, Node
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.run_state import Request, Work
from hybridagi_steps.graph.tools.base import INPUTS, Asked, GraphTool, node_signature
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.scopes import overriding

FALLBACKS = ("OTHERWISE", "ELSE")
"""Labels of the edge that is taken when the model's answers are no option; never offered to it."""

_QUOTES = "\"'`*_“”„‘’«»「」『』（）【】()[]{}<> \t.,;:!。，、！；：．"
_LEAD = re.compile(
    r"""(?:
      (?:(?:my|the)\s+)?(?:final\s+|best\s+)?
      (?:answer|choice|decision|option|label|selected\ option)\b
      (?:\s+(?:is|would\ be|should\ be)\b)?\s*[:=\-–—]?
    | it(?:['’]s|\s+(?:is|would\ be|should\ be))\b
    | (?:i|we|you)(?:['’](?:d|ll)|\s+(?:would|should|must|will|need\ to|have\ to))?
      (?:\s+(?:say|choose|pick|select|suggest|recommend|think|believe|go\ (?:with|for)))?
      (?:\s+that)?\b
    | [(\[]?\d{1,2}\s*[.):\]]+
    )\s*""",
    re.IGNORECASE | re.VERBOSE,
)
"""What may stand before an option: "My answer is", "I would say", a number in a list."""
_CLAUSES = re.compile(r"[.,;:!?\n。，、！；：．…–—]|\s-\s")
_TURN = (
    r"(?:\b(?:but|however|wait|on second thoughts?|on reflection|correction|scratch that)\b.*?"
    r"|\b(?:or|actually|rather|instead)\W+)"
)
"""Takes back what was said before it, when another option follows."""
_MARKED = re.compile(r"\*\*(.+?)\*\*|`(.+?)`|\"(.+?)\"|“(.+?)”")
_REASON = re.compile(
    r"^\s*(?:[.,;:!\n)–—。，、！；：．（）…-]|\(|because\b|since\b|as\b)", re.IGNORECASE
)

_SHOWN_OF_ERROR = 500

_DECIDE = "Answer the question by choosing one of the options."
_DECISION_INPUTS = {
    "objective": INPUTS["objective"],
    "past_steps": INPUTS["past_steps"],
    "question": "What to decide",
    "options": "The options to choose from",
}


def place_of(program: GraphProgram, node: Node) -> str:
    """Return the name under which a node's predictor is kept."""
    return f"{program.name}.{node.id}"


def predictors_of(
    programs: Iterable[GraphProgram], tools: Mapping[str, GraphTool]
) -> dict[str, dspy.Module]:
    """Return a new predictor for every node that asks a language model."""
    found: dict[str, dspy.Module] = {}
    for program in programs:
        for node in program.nodes.values():
            if (predictor := predictor_of(node, program, tools)) is not None:
                if (place := place_of(program, node)) in found:
                    raise ProgramError(f"two nodes are called {place!r}; rename one of them.")
                found[place] = predictor
    return found


def predictor_of(
    node: Node, program: GraphProgram, tools: Mapping[str, GraphTool]
) -> dspy.Module | None:
    """Return a new predictor for one node, None when it asks no language model."""
    if isinstance(node, Action):
        tool = tools.get(node.tool)
        if tool is None:
            raise UnknownToolError(node.tool, list(tools))
        return None if node.disable_inference else tool.predictor(node.purpose)
    if not isinstance(node, Decision):
        return None
    options = ", ".join(offered(list(program.choices(node.id))))
    choice = {"choice": Asked(str, f"one of: {options}")}
    return dspy.Predict(node_signature(_DECIDE, node.purpose, _DECISION_INPUTS, choice))


def parts_of(predictor: dspy.Module | None) -> tuple[Any, ...]:
    """Return a predictor and those inside it: all that its node's step tells."""
    if predictor is None:
        return ()
    return tuple({id(part): part for part in (predictor, *predictor.predictors())}.values())


def asked(predictor: dspy.Module, inputs: dict[str, Any], lm: object = None) -> Work[Any]:
    """Ask a language model and return its prediction.

    `lm` is asked when the predictor has none of its own, instead of the one configured.
    """
    request = Request(lambda: predictor(**inputs), lambda: predictor.acall(**inputs))
    try:
        with nullcontext() if lm is None else overriding(lm=lm):
            return (yield request)
    except AdapterParseError as error:
        name, said = _single_text(predictor), _first_said(error)
        if name is None or not said:
            raise
        return dspy.Prediction(**{name: said})


Ask = Callable[[Mapping[str, str]], Work[Any]]
"""Asks a node's predictor, told what else it is to know, and returns its prediction."""


def arguments_asked(
    ask: Ask, tool: GraphTool, prompt: str, corrections: int
) -> Work[dict[str, Any]]:
    """Ask for a tool's arguments until they fit, at most `corrections` times more."""
    wording = prompt
    for left in reversed(range(corrections + 1)):
        try:
            arguments = tool.from_prediction((yield from ask({"prompt": wording})))
            tool.check(arguments)
        except (ToolInputError, UnknownToolError, AdapterParseError) as error:
            if not left:
                raise
            why = inert(str(error)[:_SHOWN_OF_ERROR])
            wording = f"{prompt}\n\nYour last answer could not be used: {why}\nAnswer again."
        else:
            return arguments
    raise AssertionError  # the loop returns or raises


def choice_asked(
    ask: Ask, question: str, labels: list[str], corrections: int
) -> Work[tuple[str, str]]:
    """Ask until the answer is an option, at most `corrections` times more.

    Returned are the label, and what was said.
    """
    options = offered(labels)
    wording, said = question, ""
    for _ in range(corrections + 1):
        prediction = yield from ask({"question": wording, "options": ", ".join(options)})
        said = shown_text(prediction["choice"])
        label = chosen(said, options)
        if label is not None:
            return label, said
        wording = (
            f"{question}\n\nYour answer {inert(said[:200])!r} is none of the options. Answer "
            f"with exactly one of them and nothing else: {', '.join(options)}"
        )
    fallback = fallback_of(labels)
    if fallback is None:
        raise DecisionError(said, options, corrections + 1)
    return fallback, said


def _single_text(predictor: dspy.Module) -> str | None:
    """Return the name of the only field besides reasoning that is asked for, if it is a text."""
    inner: list[Any] = predictor.predictors()
    outputs = [pair for each in inner for pair in each.signature.output_fields.items()]
    rest = [(name, field) for name, field in outputs if name not in shapes.REASONING]
    return rest[0][0] if len(rest) == 1 and rest[0][1].annotation is str else None


def _first_said(error: AdapterParseError) -> str:
    """Return what the model said before DSPy asked it again for JSON."""
    while isinstance(error.__context__, AdapterParseError):
        error = error.__context__
    return shapes.answer_text([error.lm_response])


def fallback_of(labels: Sequence[str]) -> str | None:
    """Return the label of the fallback edge, None when there is none."""
    return next((label for label in labels if label.strip().upper() in FALLBACKS), None)


def offered(labels: Sequence[str]) -> list[str]:
    """Return the labels that a model may choose from: all but the fallback's."""
    fallback = fallback_of(labels)
    return [label for label in labels if label != fallback]


def chosen(answer: str, labels: Sequence[str]) -> str | None:
    """Return the label that an answer means, None when it means none, or more than one.

    Example:
        >>> chosen("Ask user, since no date was given.", ["ANSWER", "ASK_USER"])
        'ASK_USER'
        >>> chosen("Either is fine", ["ANSWER", "ASK_USER"]) is None
        True
    """
    keys = {label_key(label): label for label in labels}
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    if not lines:
        return None
    for text in (answer, lines[0], lines[-1]):
        if (label := _whole(text, keys)) is not None and _alone(label, answer, labels):
            return label
    for text in (lines[0], lines[-1]):
        label = _at_the_beginning(text, labels)
        if label is not None and _alone(label, answer, labels):
            return label
    marked = {_whole("".join(groups), keys) for groups in _MARKED.findall(answer)} - {None}
    found = next(iter(marked), None)
    return found if len(marked) == 1 and found and _alone(found, answer, labels) else None


def _whole(text: str, keys: Mapping[str, str]) -> str | None:
    """Return the label that the whole text is, with or without "My answer is" before it."""
    found = (keys.get(label_key(reading)) for reading in _readings(text))
    return next((label for label in found if label is not None), None)


def _readings(text: str) -> Iterator[str]:
    """Yield a text without quotes, then what is left as each "My answer is" is taken away."""
    bare = text.strip(_QUOTES) or text.strip()
    while bare:
        yield bare
        lead = _LEAD.match(bare)
        bare = bare[lead.end() :].strip(_QUOTES) if lead else ""


def _at_the_beginning(text: str, labels: Sequence[str]) -> str | None:
    """Return the longest label that the text begins with, if a pause or a reason follows it."""
    for reading in _readings(text):
        for label in sorted(labels, key=len, reverse=True):
            found = re.match(_as_words(label), reading, re.IGNORECASE)
            if found is None:
                continue
            rest = reading[found.end() :].lstrip("\"'`*_”’»)]}>」』】）")
            if not rest or _REASON.match(rest):
                return label
    return None


def _as_words(label: str) -> str:
    """Return the pattern of a label as a person writes it: "ask the user" for ASK_USER."""
    words = [re.escape(word) for word in re.split(r"[\s_\-]+", label) if word]
    return r"[\s_\-]+(?:(?:the|a|an)\s+)?".join(words)


def _alone(label: str, answer: str, labels: Sequence[str]) -> bool:
    """Whether the answer does not name another label, and does not go over to one.

    Written out letter for letter a label counts anywhere; in other letters ("no" for NO) where it
    is all of a clause, or follows a "but" or "actually" that comes after the label itself.
    """
    others = [word for word in labels if word != label]
    keys = {label_key(word): word for word in others}
    lines = [reading for line in answer.splitlines() for reading in [*_readings(line)][-1:]]
    if any(_whole(clause, keys) for line in lines for clause in _CLAUSES.split(line)):
        return False
    *_, last = [None, *re.finditer(_as_words(label), answer, re.IGNORECASE)]
    after = "" if last is None else answer[last.end() :]
    for word in others:
        exact = rf"(?<!\w){re.escape(word)}(?!\w)"
        if len(word) > 1 and word not in label and re.search(exact, answer):
            return False
        if re.search(rf"{_TURN}(?<!\w){_as_words(word)}(?!\w)", after, re.I | re.S):
            return False
    return True

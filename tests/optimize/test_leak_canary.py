"""No optimiser and no evaluation sees the answer of an example that it is judged by.

The memory holds the answer of every validation example three times: under the same inputs, under a
reworded question of the same task, and as an echo: the answer to another task that was given after
the rewording had been recalled. The model copies the best demonstration, as small models do. What
is looked at are all prompts that ask for a validation example's answer, whoever sends them; those
in which an optimiser shows its trainset to a model that writes instructions ask for no answer.
"""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.optimize.exclusion import Fence, Ties
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply, scripted_lm

pytestmark = pytest.mark.filterwarnings(
    # Optuna marks the sampler that MIPROv2 asks for as experimental.
    "ignore::optuna.exceptions.ExperimentalWarning",
)

TOPICS = ["refund", "luggage", "upgrade", "voucher", "delay", "seat"]
SECRET = [f"CANARY-{topic}-{n}" for n, topic in enumerate(TOPICS)]
ANSWERED = re.compile(r"\[\[ ## answer ## \]\]\n(.*)")


def example(task: str, question: str, answer: str) -> Any:
    return dspy.Example(task=task, question=question, answer=answer).with_inputs("task", "question")


VAL = [
    example(f"val {topic}", f"What about the {topic} of my flight?", secret)
    for topic, secret in zip(TOPICS, SECRET, strict=True)
]
TRAIN = [
    example(f"train {topic}", f"I ask about the {topic} of a flight, please", f"honest {topic}")
    for topic in TOPICS
]


class Ask(dspy.Module):
    """Answers questions."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = dspy.Predict("task, question -> answer")

    def forward(self, task: str, question: str) -> Any:
        """Answer."""
        return self.reply(task=task, question=question)

    async def aforward(self, task: str, question: str) -> Any:
        """Answer asynchronously."""
        return await self.reply.acall(task=task, question=question)


def copier(request: Any) -> Reply:
    """Give the answer of the nearest demonstration."""
    asked = asked_fields(request)
    if "answer" not in asked:
        reply = plausible_reply(request)
        named = any(name.endswith("_instruction") for name in asked)
        return dict.fromkeys(asked, "Answer with care") if named else reply
    seen = ANSWERED.findall("\n".join(message.text or "" for message in request.messages[:-1]))
    return {**plausible_reply(request), "answer": seen[-1] if seen else "nothing"}  # type: ignore[dict-item]


def task_of(inputs: dict[str, Any]) -> str:
    return inputs["task"]


def scored(gold: Any, given: Any, *_: Any, **__: Any) -> float:
    return float(gold.answer == given.answer)


def told(gold: Any, given: Any, trace: Any = None, name: Any = None, part: Any = None) -> Any:
    return dspy.Prediction(score=scored(gold, given), feedback="Take more care.")


def remember(memory: hs.StepMemory, task: str, question: str, answer: str) -> None:
    with dspy.context(lm=scripted_lm([{"answer": answer}])), hs.record(memory):
        Ask()(task=task, question=question)


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """Everything that gives the answers away, and honest work on the same topics."""
    for name in ("dspy", "optuna"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        for n, topic in enumerate(TOPICS):
            remember(opened, f"old {topic}", f"My {topic}, how does that work?", f"plain {topic}")
            remember(opened, VAL[n].task, VAL[n].question, SECRET[n])
            again = f"Could you tell me how the {topic} of that flight works?"
            remember(opened, VAL[n].task, again, SECRET[n])
        for topic in TOPICS:  # the third: what the copier makes of a rewording it recalls
            everyday = hs.WithExperience(Ask(), opened, k=1, on_error="raise")
            question = f"And could you tell me how the {topic} of that flight works?"
            with dspy.context(lm=scripted_lm(copier)), hs.record(opened):
                echoed = everyday(task=f"other {topic}", question=question).answer
            assert echoed.startswith(f"CANARY-{topic}"), "the memory has no echo"
        yield opened


def leaks(lm: ScriptedLM) -> list[str]:
    """The secrets that stood in prompts which asked for them."""
    found: list[str] = []
    for request in lm.requests:
        asked = request.messages[-1].text or ""
        if "answer" not in asked_fields(request):
            continue
        shown = f"{request.system}{[message.text for message in request.messages]}"
        for gold in VAL:
            if f"{gold.question}\n" in asked and gold.answer in shown:
                found.append(gold.answer)
    return found


def asked_for(lm: ScriptedLM) -> int:
    """How many prompts asked for a validation example's answer."""
    questions = [gold.question for gold in VAL]
    lasts = [request.messages[-1].text or "" for request in lm.requests]
    return sum(any(f"{question}\n" in last for question in questions) for last in lasts)


def evaluate(program: Any, lm: ScriptedLM) -> Any:
    return dspy.Evaluate(devset=VAL, metric=scored, num_threads=4, display_progress=False)(program)


def in_threads(student: Any, lm: ScriptedLM) -> Any:
    return student


def in_tasks(student: Any, lm: ScriptedLM) -> Any:
    """Run in an event loop, in a recording with a scope."""

    async def ask_all() -> None:
        with hs.record(student.memory, scope="mine"):
            await asyncio.gather(*(student.acall(**gold.inputs()) for gold in VAL))

    asyncio.run(ask_all())
    return student


def labeled(student: Any, lm: ScriptedLM) -> Any:
    return dspy.LabeledFewShot(k=3).compile(student, trainset=TRAIN)


def bootstrap(student: Any, lm: ScriptedLM) -> Any:
    optimiser = dspy.BootstrapFewShot(metric=scored, max_bootstrapped_demos=4)
    return optimiser.compile(student, trainset=TRAIN)


def bootstrap_of_anything(student: Any, lm: ScriptedLM) -> Any:
    """Without a metric every run becomes a demonstration, also those that copied a secret."""
    optimiser = dspy.BootstrapFewShot(max_bootstrapped_demos=6, max_labeled_demos=0)
    return optimiser.compile(student, trainset=TRAIN)


def mipro(student: Any, lm: ScriptedLM) -> Any:
    pytest.importorskip("optuna", reason="MIPROv2 searches with optuna (dspy[optuna])")
    settings = {"auto": "light", "num_threads": 2, "prompt_model": lm, "verbose": False}
    return dspy.MIPROv2(metric=scored, **settings).compile(student, trainset=TRAIN, valset=VAL)


def gepa(student: Any, lm: ScriptedLM) -> Any:
    optimiser = dspy.GEPA(metric=told, max_metric_calls=40, reflection_lm=lm, num_threads=2)
    return optimiser.compile(student, trainset=TRAIN, valset=VAL)


def simba(student: Any, lm: ScriptedLM) -> Any:
    optimiser = dspy.SIMBA(metric=scored, bsize=3, num_candidates=2, max_steps=2, num_threads=2)
    return optimiser.compile(student, trainset=TRAIN)


WAYS = [in_threads, in_tasks, labeled, bootstrap, bootstrap_of_anything, mipro, gepa, simba]


@pytest.mark.parametrize("group", [task_of, None], ids=["group", "no group"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_prompt_holds_the_answer_it_asks_for(
    memory: hs.StepMemory, way: Callable[[Any, ScriptedLM], Any], group: Any
) -> None:
    lm = scripted_lm(copier)
    student = hs.WithExperience(Ask(), memory, k=3, group=group, on_error="raise")
    with dspy.context(lm=lm):
        evaluate(way(student, lm), lm)
    assert asked_for(lm) >= len(VAL)
    assert leaks(lm) == []
    recalled = any("plain refund" in str(request.messages) for request in lm.requests)
    assert recalled == (group is not None), "honest steps are recalled with a group, only then"


@pytest.mark.parametrize("group", [task_of, None], ids=["group", "no group"])
def test_teleprompters_of_memory_leak_nothing(memory: hs.StepMemory, group: Any) -> None:
    lm = scripted_lm(copier)
    with dspy.context(lm=lm):
        evaluate(hs.KNNSteps(memory, group=group).compile(Ask(), trainset=TRAIN), lm)
        fixed = hs.BootstrapFromMemory(memory, 12, group=group).compile(Ask(), valset=VAL)
        evaluate(fixed, lm)
    assert asked_for(lm) == 2 * len(VAL)
    assert leaks(lm) == []
    assert {demo.answer[:5] for demo in fixed.predictors()[0].demos} == {"plain"}


def test_a_program_that_was_saved_still_knows_its_echoes(
    memory: hs.StepMemory, tmp_path: Any
) -> None:
    lm = scripted_lm(copier)
    student = hs.WithExperience(Ask(), memory, k=3, group=task_of, on_error="raise")
    with dspy.context(lm=lm):
        bootstrap_of_anything(student, lm).save(tmp_path / "program.json")
        loaded = hs.WithExperience(Ask(), memory, k=3, group=task_of, on_error="raise")
        loaded.load(tmp_path / "program.json")
        assert any(source.recalled for source in loaded.provenance()["reply"])
        del lm.requests[:]
        evaluate(loaded, lm)
    assert (asked_for(lm), leaks(lm)) == (len(VAL), [])


class Twice(dspy.Module):
    """Answers by a predictor that is not asked what the program was."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = dspy.Predict("question -> topic")
        self.reply = dspy.Predict("topic -> answer")

    def forward(self, task: str, question: str) -> Any:
        """Answer."""
        return self.reply(topic=f"{self.topic(question=question).topic} of {task}")


def knowing(request: Any) -> Reply:
    """Give the right answer of the example that is asked for."""
    asked = request.messages[-1].text
    found = [gold for gold in VAL if f"{gold.question}\n" in asked or f"{gold.task}\n" in asked]
    return {**plausible_reply(request), "answer": found[0].answer, "topic": "it"}  # type: ignore[dict-item]


@pytest.mark.parametrize(("program", "labeled_demos"), [(Ask, 0), (Ask, 6), (Twice, 0)])
def test_no_demonstration_of_an_example_is_shown_while_it_is_judged(
    program: type[Any], labeled_demos: int
) -> None:
    """An optimiser makes demonstrations of the examples on which the program is then evaluated."""
    lm = scripted_lm(knowing)
    with hs.StepMemory(":memory:", embedder="hashing") as memory, dspy.context(lm=lm):
        student = hs.WithExperience(program(), memory, group=task_of, on_error="raise")
        counts = {"max_bootstrapped_demos": 6 - labeled_demos, "max_labeled_demos": labeled_demos}
        optimiser = dspy.BootstrapFewShot(metric=scored, **counts)
        compiled = optimiser.compile(student, trainset=VAL)
        del lm.requests[:]
        evaluate(compiled, lm)
        shown = [str(request.messages[:-1]) for request in lm.requests]
        assert any(secret in text for text in shown for secret in SECRET), "others are shown"
        for request in lm.requests:
            asked = request.messages[-1].text or ""
            for gold in VAL:
                if f"{gold.question}\n" in asked or f"{gold.task}\n" in asked:
                    assert gold.answer not in str(request.messages)


def test_an_echo_of_an_echo_is_known_too(memory: hs.StepMemory) -> None:
    """A second optimiser bootstraps from what the first has compiled, and copies its demos."""

    def copier_of_own(request: Any) -> Reply:
        seen = ANSWERED.findall("\n".join(m.text or "" for m in request.messages[:-1]))
        return {"answer": seen[0] if seen else "nothing"}

    student = hs.WithExperience(Ask(), memory, k=3, group=task_of, on_error="raise")
    more = [example(f"more {topic}", f"More on the {topic}?", "x") for topic in TOPICS]
    with dspy.context(lm=scripted_lm(copier)):
        first = bootstrap_of_anything(student, scripted_lm([]))
    own = {demo["answer"] for demo in first.predictors()[0].demos}
    lm = scripted_lm(copier_of_own)
    with dspy.context(lm=lm):
        settings = {"max_bootstrapped_demos": 6, "max_labeled_demos": 0}
        second = dspy.BootstrapFewShot(**settings).compile(student, teacher=first, trainset=more)
        copied = {demo["answer"] for demo in second.predictors()[0].demos}
        assert copied & own & set(SECRET), "the second has no echo of an echo"
        del lm.requests[:]
        evaluate(second, lm)
    assert (asked_for(lm), leaks(lm)) == (len(VAL), [])


def test_what_was_said_before_in_a_session_is_known_to_its_later_runs() -> None:
    """Runs of a conversation see the answers before them, and so do those of a fork."""

    def group(inputs: dict[str, Any]) -> str:
        return inputs.get("message") or inputs["question"]

    async def converse(memory: hs.StepMemory) -> None:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)
        await runner.run("talk", "What about the seat before?")
        await runner.run("talk", VAL[0].question)
        await runner.run("talk", "And what else?")
        await memory.repository().fork("talk", 4, "fork")
        await runner.run("fork", "And anything else?")

    replies = [{"answer": text} for text in ("honest", SECRET[0], f"again {SECRET[0]}", SECRET[0])]
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        with dspy.context(lm=scripted_lm(replies)):
            asyncio.run(converse(memory))
        lm = scripted_lm(copier)
        ask = hs.WithExperience(dspy.Predict("question -> answer"), memory, 9, group=group)
        with dspy.context(lm=lm), hs.record(memory, scope="mine"):
            ask(question=VAL[0].question)
            assert leaks(lm) == []
            assert len(ask.last_recall()) == 1, "what was said before it is honest"
            ask(question="Something new?")
            assert len(ask.last_recall()) == 4


def test_a_run_that_goes_on_from_another_is_tied_to_it() -> None:
    """A retry in a run of its own, or an agent that was called by another."""

    def call(run: str, task: str, parent_id: str | None = None) -> hs.AgentStep:
        inputs = {"program": "Ask", "purpose": "", "arguments": {"task": task}}
        kind = hs.AgentStepType.ProgramCall
        return hs.AgentStep(id=run, run_id=run, step_type=kind, inputs=inputs, parent_id=parent_id)

    with hs.StepMemory(":memory:") as memory:
        steps = [call("a", "one"), call("b", "two", "a"), call("c", "three", "b")]
        memory.add([*steps, call("d", "four"), call("e", "five", "not here")])
        fence = Fence(memory, task_of)
        one = fence.group_of({"task": "one"})
        assert one is not None
        assert fence.tied(memory.iter_steps(), Ties(frozenset([one]))) == {"a", "b", "c"}


def test_in_everyday_use_the_answer_known_is_what_is_recalled(memory: hs.StepMemory) -> None:
    lm = scripted_lm(copier)
    student = hs.WithExperience(Ask(), memory, group=task_of, on_error="raise")
    with dspy.context(lm=lm):
        assert [student(**gold.inputs()).answer for gold in VAL] == SECRET
    assert sorted(set(leaks(lm))) == sorted(SECRET)


@pytest.mark.parametrize("missing", ["descent", "group", "echoes"])
def test_this_test_can_fail(
    memory: hs.StepMemory, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fence holds back what the others let through."""
    lm = scripted_lm(copier)
    group: Any = "inputs" if missing == "group" else task_of
    student = hs.WithExperience(Ask(), memory, group=group, on_error="raise")
    if missing == "descent":
        monkeypatch.setattr("hybridagi_steps.optimize.exclusion.recalled_by", lambda _: [])
    with dspy.context(lm=lm):
        if missing == "echoes":
            monkeypatch.setattr(type(student.experience), "mark_echoes", lambda *_: None)
            student = bootstrap_of_anything(student, lm)
        evaluate(student, lm)
    assert set(leaks(lm)) == set(SECRET)


def test_what_cannot_be_told_is_out(memory: hs.StepMemory) -> None:
    """A run that recalled what is not there any more, and one whose group raises."""
    reworded = memory.find({"metadata": {}}, limit=10_000).steps
    echoes = [step for step in reworded if (step.metadata or {}).get("recalled")]
    gone = {name for step in echoes for name in (step.metadata or {})["recalled"]}
    memory.delete(gone)
    fence = Fence(memory, task_of)
    unheard_of = Ties(frozenset([0]))
    assert [each for each in echoes if fence.tied([each], unheard_of)] == echoes
    broken = Fence(memory, lambda inputs: inputs["nothing"])
    assert len(broken.tied(reworded, unheard_of)) == len({step.run_id for step in reworded})


@pytest.mark.parametrize("group", [float("nan"), ("task", float("nan")), object], ids=str)
def test_a_group_that_no_two_runs_can_share_lets_nothing_be_seen(group: Any) -> None:
    told = group if callable(group) else lambda: group
    with hs.StepMemory(":memory:") as memory:
        fence = Fence(memory, lambda _: told())
        assert fence.group_of({"task": "one"}) is None
        assert Fence(memory, lambda _: ("task", 1, None)).group_of({"task": "one"}) is not None

"""Predictions of steps: DSPy's contract and pydantic's, over one store."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any, cast

import dspy
import pytest
from pydantic import ValidationError

from hybridagi_steps.dspy_types import (
    AgentStepList,
    PredictionModel,
    Query,
    QueryList,
    QueryWithSteps,
    StepContext,
)
from hybridagi_steps.errors import InvalidStepError
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepHit

# DSPy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportUnhashable=false


def step(hop: int = 0, **fields: Any) -> AgentStep:
    return AgentStep(
        hop=hop,
        step_type=AgentStepType.Action,
        inputs={"purpose": f"purpose {hop}"},
        outputs={"result": hop},
        **fields,
    )


def examples() -> list[PredictionModel]:
    return [
        AgentStepList(steps=[step(1), step(2)]),
        Query(query="why?"),
        QueryList(queries=[Query(query="a"), Query(query="b")]),
        QueryWithSteps(queries=QueryList(queries=[Query(query="a")]), steps=[step(1)]),
    ]


each = pytest.mark.parametrize("made", examples(), ids=lambda made: type(made).__name__)


@each
def test_it_is_a_prediction_and_every_copy_is_equal(made: PredictionModel) -> None:
    assert isinstance(made, dspy.Prediction)
    for again in (
        made.copy(),
        copy.copy(made),
        copy.deepcopy(made),
        pickle.loads(pickle.dumps(made)),
        type(made).model_validate(made.toDict()),
        type(made).model_validate_json(made.model_dump_json()),
    ):
        assert type(again) is type(made)
        assert again == made
        assert hash(again) == hash(made)
    assert repr(made) == str(made) != ""


@each
def test_it_reads_like_an_example(made: PredictionModel) -> None:
    names = list(type(made).model_fields)
    assert made.keys() == names
    if not isinstance(made, AgentStepList):  # which is counted and iterated as its steps
        assert list(made) == names
        assert len(made) == len(names)
    assert dict(made) == {**cast("Any", made)} == dict(made.items())
    assert dict(made.items()) == dict(zip(names, made.values(), strict=True))
    for name in names:
        assert name in made
        assert made[name] is made.get(name)
    assert made.get("absent", "default") == "default"
    assert "absent" not in made
    with pytest.raises(KeyError):
        made["absent"]
    assert dict(dspy.Prediction(**cast("Any", made)).items()) == dict(made.items())


def test_prompt_data_has_the_shapes_of_the_seed() -> None:
    one = step(3)
    text = {"step": str(one)}
    assert AgentStepList(steps=[one]).to_dict() == {"steps": [text]}
    assert Query(query="a").to_dict() == {"query": "a"}
    queries = QueryList(queries=[Query(query="a"), Query(query="b")])
    assert queries.to_dict() == {"queries": ["a", "b"]}
    assert QueryWithSteps(queries=queries, steps=[one]).to_dict() == {
        "queries": ["a", "b"],
        "steps": [text],
    }


def test_there_is_one_store() -> None:
    made = AgentStepList()
    made.steps.append(step(1))
    assert len(made["steps"]) == 1
    assert made["steps"] is made.steps
    made["steps"] = [step(2), step(3)]
    assert [each.hop for each in made.steps] == [2, 3]
    made.steps = [step(4)]
    assert made["steps"][0].hop == 4
    assert made.with_inputs("steps").inputs().steps[0].hop == 4


def test_a_list_of_steps_gives_the_step_at_a_place_and_those_of_a_slice() -> None:
    made = AgentStepList(steps=[step(1), step(2), step(3)])
    assert made[0] is made.steps[0]
    assert [each.hop for each in made[-2:]] == [2, 3]
    with pytest.raises(IndexError):
        made[3]
    with pytest.raises(KeyError):
        made["step"]


def test_a_list_of_steps_reads_as_the_list_of_its_steps() -> None:
    steps = [step(1), step(2), step(3)]
    made = AgentStepList(steps=steps)
    assert (len(made), bool(made)) == (3, True)
    assert list(made) == made.steps
    assert list(reversed(made)) == made.steps[::-1]
    assert steps[1] in made
    assert step(9) not in made
    assert made.index(steps[2]) == 2
    with pytest.raises(ValueError, match="not in list"):
        made.index(step(9))
    assert (len(AgentStepList()), bool(AgentStepList()), list(AgentStepList())) == (0, False, [])


def test_a_list_of_steps_speaks_of_fields_as_a_prediction() -> None:
    made = AgentStepList(steps=[step(1)])
    made["note"] = "kept"
    assert made.keys() == list(dict(made)) == ["steps", "note"]
    assert dict(made.items()) == dict(made) == {"steps": made.steps, "note": "kept"}
    assert made.values() == [made.steps, "kept"]
    assert "steps" in made
    assert "note" in made
    assert "absent" not in made
    assert list(made.model_dump()) == list(made.toDict()) == ["steps", "note"]
    assert dspy.Prediction(**cast("Any", made)).steps == made.steps
    assert dict(AgentStepList()) == {"steps": []}


def test_questions_with_steps_are_read_as_dspy_reads_predictions() -> None:
    made = QueryWithSteps(queries=QueryList(queries=[Query(query="a")]), steps=[])
    assert (len(made), bool(made), list(made)) == (2, True, ["queries", "steps"])


def test_empty_ones_do_not_share_their_list() -> None:
    first, second = AgentStepList(), AgentStepList()
    first.steps.append(step())
    assert second.steps == []


def test_inputs_and_labels() -> None:
    made = QueryWithSteps(queries=QueryList(queries=[Query(query="a")]), steps=[step(1)])
    marked = made.with_inputs("queries")
    assert marked.inputs().keys() == ["queries"]
    assert marked.labels().keys() == ["steps"]
    assert marked == made
    with pytest.raises(ValueError, match="with_inputs"):
        made.inputs()
    assert marked.copy().inputs().keys() == ["queries"]
    assert cast("Any", AgentStepList)(marked.inputs()).inputs().keys() == ["queries"]


def test_unknown_fields_are_kept() -> None:
    made = cast("Any", Query)(query="a", tag="x")
    assert (made.tag, made["tag"], made.keys()) == ("x", "x", ["query", "tag"])
    made["more"] = 1
    assert made.more == 1
    del made["tag"]
    assert "tag" not in made
    assert (
        pickle.loads(pickle.dumps(made))
        == made
        == Query.model_validate_json(made.model_dump_json())
    )


def test_a_field_named_like_a_method_does_not_replace_it() -> None:
    made = Query(query="a")
    made["inputs"] = 3
    assert made["inputs"] == 3
    assert made.with_inputs("query").inputs().query == "a"


def test_removing_a_field_sets_it_back() -> None:
    made = AgentStepList(steps=[step()])
    assert made.without("steps").steps == []
    assert len(made.steps) == 1
    with pytest.raises(KeyError):
        del made["absent"]


def test_data_becomes_models() -> None:
    made = QueryWithSteps.model_validate(
        {"queries": {"queries": [{"query": "a"}, "b"]}, "steps": [{"step_type": "Decision"}]}
    )
    assert [query.query for query in made.queries.queries] == ["a", "b"]
    assert made.steps[0].step_type is AgentStepType.Decision
    by_text = QueryWithSteps.model_validate({"queries": "a"})
    assert by_text.to_dict()["queries"] == ["a"]
    assert QueryWithSteps.model_validate({"queries": Query(query="a")}) == by_text
    assert QueryWithSteps.model_validate({"queries": ["a"]}) == by_text
    plain = dspy.Example(queries=[dspy.Example(query="a")])
    assert QueryWithSteps.model_validate({"queries": plain}) == by_text
    assert QueryWithSteps.model_validate(dspy.Prediction(queries=["a"], steps=[])) == by_text


@pytest.mark.parametrize("wrong", ["text", [1], [{"hop": 1}], 5, None])
def test_a_wrong_value_is_refused_and_changes_nothing(wrong: Any) -> None:
    made = AgentStepList(steps=[step(1)])
    before = made.copy()
    with pytest.raises(ValidationError):
        made.steps = wrong
    with pytest.raises(ValidationError):
        made["steps"] = wrong
    with pytest.raises(ValidationError):
        made._store = {"steps": wrong}
    with pytest.raises(ValidationError):
        AgentStepList(steps=wrong)
    assert made == before


@pytest.mark.parametrize("base", ["text", 5, [step()]])
def test_something_that_is_no_base_is_refused(base: Any) -> None:
    with pytest.raises(TypeError, match=r"dict or a dspy\.Example"):
        cast("Any", AgentStepList)(base)


def test_a_base_gives_fields_that_names_override() -> None:
    assert cast("Any", Query)({"query": "a"}, query="b").query == "b"
    assert cast("Any", Query)(dspy.Example(query="a")).query == "a"
    assert cast("Any", Query)(base={"query": "a"}).query == "a"


def test_equality_is_that_of_examples() -> None:
    assert Query(query="a") == dspy.Example(query="a")
    assert dspy.Example(query="a") == Query(query="a")
    assert hash(Query(query="a")) == hash(dspy.Example(query="a"))
    assert Query(query="a") != Query(query="b")
    assert Query(query="a") != "a"
    assert Query(query="a") != AgentStepList()
    one = step()
    assert len({AgentStepList(steps=[one]), AgentStepList(steps=[one]), Query()}) == 2


def test_order_of_keys_inside_a_step_does_not_change_its_hash() -> None:
    one = step(1)
    other = one.model_copy(update={"outputs": {"b": 1, "a": 2}})
    turned = one.model_copy(update={"outputs": {"a": 2, "b": 1}})
    first, second = AgentStepList(steps=[other]), AgentStepList(steps=[turned])
    assert first == second
    assert hash(first) == hash(second)


def test_json_of_whatever_was_added() -> None:
    made = cast("Any", AgentStepList)(
        steps=[step(vector=[0.5])],
        prediction=dspy.Prediction(answer="x", inner=Query(query="q")),
        odd=object(),
        ratio=float("nan"),
    )
    data = json.loads(json.dumps(made.toDict(), allow_nan=False))
    assert data["steps"][0]["vector"] == [0.5]
    assert data["prediction"] == {"answer": "x", "inner": {"query": "q"}}
    assert data["ratio"] is None


def test_from_completions() -> None:
    made: Any = Query.from_completions([{"query": "a"}, {"query": "b"}])
    assert made.query == "a"
    assert made.completions.query == ["a", "b"]


def test_usage_is_kept_out_of_the_fields() -> None:
    made = Query(query="a")
    made.set_lm_usage({"m": {"total_tokens": 3}})
    assert made.get_lm_usage() == {"m": {"total_tokens": 3}}
    assert made == Query(query="a")
    assert pickle.loads(pickle.dumps(made)).get_lm_usage() == {"m": {"total_tokens": 3}}


def test_a_score_makes_it_comparable() -> None:
    made = cast("Any", Query)(query="a", score=0.5)
    assert made < 0.6
    assert float(made) == 0.5


class Recall(dspy.Module):
    """Answers with typed predictions, as a retriever does."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("query -> answer")

    def forward(self, query: str) -> QueryWithSteps:
        answered = self.answer(query=query)
        return QueryWithSteps.model_validate(
            {"queries": query, "steps": [step(1)], "answer": answered.answer}
        )


def answering_lm() -> dspy.LM:
    from hybridagi_steps.testing import scripted_lm

    return scripted_lm(lambda request: {"answer": "42"})


TRAINSET = [dspy.Example(query=f"q{n}", answer="42").with_inputs("query") for n in range(3)]


def right(example: dspy.Example, prediction: Any, trace: Any = None) -> bool:
    return prediction.answer == example.answer and len(prediction["steps"]) == 1


def test_evaluate_takes_them(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    with dspy.context(lm=answering_lm()):
        score = dspy.Evaluate(
            devset=TRAINSET, metric=right, num_threads=2, save_as_json=str(results)
        )(Recall())
    assert score.score == 100
    assert len(json.loads(results.read_text())) == 3


def test_bootstrap_takes_them_and_a_program_with_them_in_its_demos_is_saved(
    tmp_path: Path,
) -> None:
    with dspy.context(lm=answering_lm()):
        compiled = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=2).compile(
            Recall(), trainset=TRAINSET
        )
    assert len(compiled.answer.demos) >= 2
    compiled.answer.demos.append(AgentStepList(steps=[step(1)]))
    compiled.save(str(tmp_path / "program.json"))
    loaded = Recall()
    loaded.load(str(tmp_path / "program.json"))
    assert len(loaded.answer.demos) == len(compiled.answer.demos)
    assert loaded.answer.demos[-1]["steps"][0]["hop"] == 1


def test_usage_tracking_reaches_them() -> None:
    with dspy.context(lm=answering_lm(), track_usage=True):
        made: Any = Recall()(query="q")
    assert sum(used["total_tokens"] for used in made.get_lm_usage().values()) > 0


def hits() -> list[StepHit]:
    return [StepHit(step=step(n), score=1 - n / 10, why=f"word {n}") for n in range(3)]


def test_what_a_retriever_found() -> None:
    found = QueryWithSteps.from_hits(["a", "b"], hits())
    assert found.scores == [1.0, 0.9, 0.8]
    assert found.passages == [recalled_text(each) for each in found.steps]
    assert found.indices == [each.id for each in found.steps]
    assert [hit.why for hit in found.hits] == ["word 0", "word 1", "word 2"]
    for again in (found.copy(), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert [hit.why for hit in again.hits] == ["word 0", "word 1", "word 2"]
    json.dumps(found.toDict())


def test_hits_follow_the_steps() -> None:
    found = QueryWithSteps.from_hits("a", hits())
    added = step(9)
    found.steps = [found.steps[2], added]
    assert [hit.step.hop for hit in found.hits] == [2, 9]
    assert [hit.why for hit in found.hits] == ["word 2", ""]


def test_one_made_by_hand_has_steps_as_hits_too() -> None:
    found = QueryWithSteps(steps=[step(1)])
    assert [hit.score for hit in found.hits] == [0.0]
    with pytest.raises(AttributeError):
        _ = found.scores


def test_notebooks_show_steps_without_their_vectors() -> None:
    secret = step(1, vector=[0.123456789])
    hit = StepHit(step=secret, score=0.5, context=[secret])
    for made in (AgentStepList(steps=[secret]), QueryWithSteps.from_hits("a", [hit])):
        html = made._repr_html_()
        assert "purpose 1" in html
        assert "0.123456789" not in html


def test_steps_become_prompt_text() -> None:
    made = AgentStepList(steps=[step(1, vector=[0.5])])
    found = QueryWithSteps(steps=made.steps)
    for context in (made.as_context(), found.as_context()):
        assert isinstance(context, dspy.Type)
        assert recalled_text(made.steps[0]) in str(context.format())


def test_vectors_are_kept_in_memory_and_left_out_of_json() -> None:
    made = AgentStepList(steps=[step(1, vector=[0.5])])
    found = QueryWithSteps(steps=made.steps)
    for each in (made, found):
        assert "0.5" not in each.model_dump_json()
        assert each.model_dump()["steps"][0]["vector"] == [0.5]
        assert each.steps[0].vector == [0.5]
        back = type(each).model_validate_json(each.model_dump_json(round_trip=True))
        assert back.steps[0].vector == [0.5]


def test_what_is_no_step_is_refused_where_a_context_is_made_of_it() -> None:
    with pytest.raises(InvalidStepError, match="made of a step, a hit") as refused:
        StepContext.of("x")
    assert "https://" not in str(refused.value)

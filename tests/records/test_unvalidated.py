"""Records made without validation are the same as validated ones."""

import pickle

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.json_values import defaults_of, unvalidated
from hybridagi_steps.records.message import StepMetrics


def _step() -> AgentStep:
    return AgentStep(
        step_type=AgentStepType.Action,
        inputs={"purpose": "look"},
        metrics=StepMetrics(duration_ms=1.5),
    )


class TestUnvalidated:
    def test_it_is_the_validated_record_in_every_respect(self) -> None:
        step = _step()
        made = unvalidated(AgentStep, dict(vars(step)), {})
        assert made == step
        assert repr(made) == repr(step)
        assert made.model_dump_json() == step.model_dump_json()
        assert pickle.loads(pickle.dumps(made)) == step

    def test_it_can_be_changed_and_copied_like_any_other(self) -> None:
        made = unvalidated(AgentStep, dict(vars(_step())), {"colour": "red"})
        made.hop = 7
        copied = made.model_copy(update={"score": 0.5}, deep=True)
        assert (copied.hop, copied.score, copied.model_extra) == (7, 0.5, {"colour": "red"})
        assert AgentStep.model_validate(copied.model_dump()) == copied

    def test_defaults_are_those_a_new_record_has(self) -> None:
        fresh = vars(_step())
        defaults = defaults_of(AgentStep)
        assert fresh.keys() - defaults.keys() == {"id", "step_type", "created_at"}
        given = {"inputs", "metrics"}
        assert all(fresh[name] == value for name, value in defaults.items() if name not in given)

    def test_what_one_is_given_is_told_of_no_other(self) -> None:
        one, other = (unvalidated(AgentStep, dict(vars(_step())), {}) for _ in range(2))
        copied = one.model_copy(update={"colour": "red"})
        one.hop, copied.score = 7, 0.5
        assert one.model_fields_set == other.model_fields_set == set(AgentStep.model_fields)
        assert other.hop == 0

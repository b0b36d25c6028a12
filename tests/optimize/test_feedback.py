"""What is said of a run in words."""

from __future__ import annotations

import pytest
from past_runs import service_desk, step

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError, UnknownRunError
from hybridagi_steps.optimize.feedback import trouble_of

CAUTION = "These are observations; the decisive mistake may be another step."


def test_trouble_loops_low_steps_and_the_end_are_named() -> None:
    with service_desk() as memory:
        memory.add(
            [
                step("bad", 1, "look_up", "the customer wants money back", arguments={"id": 7}),
                step("bad", 2, "look_up", "try again", "ValueError: no such booking"),
                step("bad", 3, "look_up", "the customer wants money back", arguments={"id": 7}),
                step("bad", 4, "cancel", "the booking is paid"),
            ]
        )
        memory.score("bad", 0.0)
        lines = hs.trajectory_feedback("bad", memory=memory).splitlines()
        assert lines[0] == "The run ended ok after 4 steps, score 0."
        assert lines[1] == "First trouble: step 2, look_up(): ValueError: no such booking"
        assert lines[2] == "Repeated: look_up(id=7) gave the same result 2 times (steps 1, 3)."
        assert lines[3].startswith("Seldom ended well: step 4, cancel(): 0 of 4 similar steps")
        assert lines[-1] == CAUTION


def test_an_open_memory_is_found_by_the_run() -> None:
    with service_desk() as memory:
        assert hs.trajectory_feedback("run-1") == hs.trajectory_feedback("run-1", memory=memory)
        with pytest.raises(UnknownRunError):
            hs.trajectory_feedback("nobody")


def test_steps_alone_are_told_of_without_a_past() -> None:
    told = hs.trajectory_feedback([step("r", 1, "act", "p", score=0.5)])
    assert told == f"The run ended ok after 1 steps, score 0.5.\n{CAUTION}"


def test_the_text_keeps_to_its_length_and_stays_plain() -> None:
    result = "Error: [[ ## answer ## ]]\x1b[31m <|im_start|>system " + "word " * 100
    steps = [step("r", n, "act", "p", f"{result}{n // 2}", arguments={"n": n}) for n in range(60)]
    told = hs.trajectory_feedback(steps, max_chars=300)
    assert len(told) <= 300
    assert not [mark for mark in ("[[ ##", "\x1b", "<|im_start|>") if mark in told]
    assert told.endswith(CAUTION)
    with pytest.raises(InvalidSettingError):
        hs.trajectory_feedback(steps, max_chars=10)


@pytest.mark.parametrize(
    ("result", "trouble"),
    [
        ("Traceback (most recent call last):", True),
        ("requests.exceptions.HTTPError: 500", True),
        ('{"error": "no such flight", "response": ""}', True),
        ('{"error": "", "response": "fine"}', False),
        ({"error": {"code": 4}}, True),
        ("Errors are rare in this text", False),
        ("There was no error", False),
        ("", False),
        (None, False),
    ],
)
def test_trouble_is_an_error_or_a_text_that_begins_like_one(result: object, trouble: bool) -> None:
    assert (trouble_of(step("r", 1, "act", "p", result)) is not None) == trouble


def test_feedback_names_no_steps_by_their_ids() -> None:
    ids = ["01a20a23-ab39-7c91-ba5e-af662d28a3e6"]
    step = hs.AgentStep(
        step_type=hs.AgentStepType.Action,
        predictor="ReAct.extract.predict",
        inputs={"arguments": {"question": "Rain?", "trajectory": {"steps": ids}}},
        outputs={"error": {"type": "ValueError", "message": "no"}},
        status="error",
        run_id="r",
    )
    told = hs.trajectory_feedback([step])
    assert "ReAct.extract.predict(question=Rain?): ValueError: no" in told
    assert ids[0] not in told

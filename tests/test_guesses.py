"""What a person types first, without the documentation: it works, or names what does."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from tests.runner_cases import answering


def action(tool: str) -> hs.AgentStep:
    """A step of a tool."""
    return hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": tool, "tool": tool})


def in_terminal(code: Callable[[], Any]) -> Any:
    """Call code where no event loop runs, as a script does."""
    return code()


def in_kernel(code: Callable[[], Any]) -> Any:
    """Call code inside a running event loop, as a cell of a notebook."""

    async def cell() -> Any:
        return code()

    return asyncio.run(cell())


@pytest.fixture(params=[in_terminal, in_kernel], ids=lambda run: run.__name__)
def anywhere(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    return request.param


Anywhere = Callable[[Callable[[], Any]], Any]


class TestSessionsWithoutAwait:
    def test_a_runner_is_asked(self, memory: hs.StepMemory, anywhere: Anywhere) -> None:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> Any:
            with dspy.context(lm=answering("HAT742", "At 9:40.")):
                return runner.ask("trip", "Which flight?"), runner.ask("trip", "When?")

        first, second = anywhere(code)
        assert (first.text, second.text) == ("HAT742", "At 9:40.")
        assert first.status == "completed"

    def test_a_failure_is_raised_with_its_result(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def broken(messages: list[dict[str, Any]]) -> str:
            raise ValueError("no fuel")

        runner = hs.StepRunner(broken, memory)
        with pytest.raises(hs.errors.RunFailedError, match="no fuel"):
            anywhere(lambda: runner.ask("trip", "Go"))
        result = anywhere(lambda: runner.ask("trip", "Go", raise_on_failure=False))
        assert result.status == "failed"

    def test_it_joins_the_run_that_is_recorded(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        """What stands in context variables is there: the model, the user, the callbacks."""
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> None:
            with (
                dspy.context(lm=answering("HAT742")),
                hs.record(memory, user_id="ann"),
            ):
                runner.ask("trip", "Which flight?")

        anywhere(code)
        assert {step.user_id for step in memory.iter_steps()} == {"ann"}

    def test_a_session_is_read_answered_and_branched(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> None:
            chat = memory.session("trip", runner)
            with dspy.context(lm=answering("HAT742", "HAT743", "HAT9", "Yes.")):
                assert chat.ask("Which flight?").text == "HAT742"
                assert chat.retry().text == "HAT743"
                assert chat.edit(1, "Which flight to Oslo?").text == "HAT9"
                fork = chat.fork(1)
                assert fork.session_id != "trip"
                assert [step.content for step in fork.messages] == ["Which flight to Oslo?"]
                assert fork.retry().text == "Yes."
            assert [step.content for step in chat.messages] == ["Which flight to Oslo?", "HAT9"]
            assert len(chat.attempts) == 3
            assert chat.context(budget=500).messages[0]["content"] == "Which flight to Oslo?"

        anywhere(code)

    def test_a_program_will_do_and_none_names_what_is_missing(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def code() -> None:
            with dspy.context(lm=answering("HAT742")):
                chat = memory.session("trip", dspy.Predict("question -> answer"), user_id="ann")
                assert chat.ask("Which flight?").text == "HAT742"
            assert {step.user_id for step in chat.messages} == {"ann"}
            with pytest.raises(hs.errors.InvalidSettingError, match=r"session\('trip', program\)"):
                memory.session("trip").ask("Which flight?")
            memory.session("notes").append({"role": "user", "content": "Oslo"})
            assert memory.session("notes").messages[0].content == "Oslo"
            assert memory.session("nobody").messages == []

        anywhere(code)

    def test_a_program_asks_another_agent_without_await(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def knows(messages: list[dict[str, Any]]) -> str:
            return "In five days."

        expert = hs.StepRunner(knows, memory)

        def desk(messages: list[dict[str, Any]]) -> str:
            return f"They say: {expert.ask('help', 'When?').text}"

        result = anywhere(lambda: hs.StepRunner(desk, memory).ask("desk", "When?"))
        assert result.text == "They say: In five days."
        assert {step.parent_run_id for step in memory.session("help").messages} == {result.run_id}

    def test_another_users_session_stays_closed(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def code() -> None:
            note = {"role": "user", "content": "It is 1234."}
            memory.session("private", user_id="ann").append(note)
            with pytest.raises(hs.errors.NotAllowedError):
                memory.session("private", user_id="bob").messages  # noqa: B018

        anywhere(code)


@pytest.fixture
def agent() -> dspy.Module:
    def find_flight(city: str) -> str:
        """Look up the next flight to a city."""
        return f"HAT742 leaves for {city} at 9:40"

    return dspy.ReAct("question -> answer", tools=[find_flight])


def react_lm() -> Any:
    return hs.testing.scripted_lm(
        {
            "next_thought": ["I look it up.", "That is all."],
            "next_tool_name": ["find_flight", "finish"],
            "next_tool_args": [{"city": "Seattle"}, {}],
            "reasoning": "The tool named the flight and its time.",
            "answer": "HAT742, at 9:40.",
        }
    )


class TestRecordingAFunction:
    def test_each_call_is_a_run(self, memory: hs.StepMemory, agent: dspy.Module) -> None:
        @hs.record(memory, session_id="desk")
        def desk(question: str) -> str:
            """Answer at the desk."""
            return agent(question=question).answer

        with dspy.context(lm=react_lm()):
            assert desk("When to Seattle?") == desk(question="Once more?") == "HAT742, at 9:40."
        assert desk.__name__ == "desk"
        second, first = memory.runs()
        assert (first.session_id, first.status) == ("desk", "completed")
        assert "desk" in first.title
        assert "When to Seattle?" in first.title
        assert first.outputs == {"result": "HAT742, at 9:40."}
        assert second.steps == first.steps > 4

    def test_an_async_one_too(self, memory: hs.StepMemory) -> None:
        predict = dspy.Predict("question -> answer")

        @hs.record(memory)
        async def desk(question: str) -> str:
            return (await predict.acall(question=question)).answer

        with dspy.context(lm=answering("A", "B")):
            assert asyncio.run(desk("one")) == "A"
        assert len(memory.runs()) == 1

    def test_what_it_cannot_decorate_names_what_does(self, memory: hs.StepMemory) -> None:
        def pieces() -> Any:
            yield 1

        with pytest.raises(hs.errors.InvalidSettingError, match=r"with hs\.record"):
            hs.record(memory)(pieces)
        with pytest.raises(hs.errors.InvalidSettingError, match="Recorded"):
            hs.record(memory)(dspy.Predict("question -> answer"))
        with pytest.raises(hs.errors.InvalidSettingError, match="function"):
            hs.record(memory)("desk")  # pyright: ignore[reportArgumentType]


class TestRecordingAll:
    @pytest.fixture(autouse=True)
    def settings(self) -> Iterator[None]:
        kept = dict(dspy.settings.config)
        yield
        dspy.configure(**kept)

    def test_autolog_records_each_call_once(
        self, memory: hs.StepMemory, agent: dspy.Module
    ) -> None:
        dspy.configure(lm=react_lm(), callbacks=[])
        for _ in range(3):
            hs.autolog(memory)
        agent(question="When to Seattle?")
        assert len(memory.runs()) == 1
        hs.autolog(memory, disable=True)
        agent(question="And back?")
        assert len(memory.runs()) == 1
        assert dspy.settings.callbacks == []

    def test_autolog_leaves_other_callbacks_and_changes_its_memory(
        self, memory: hs.StepMemory, file_memory: hs.StepMemory, agent: dspy.Module
    ) -> None:
        mine = BaseCallback()
        dspy.configure(lm=react_lm(), callbacks=[mine])
        hs.autolog(memory)
        hs.autolog(file_memory, user_id="ann")
        agent(question="When to Seattle?")
        assert len(memory.runs()) == 0
        assert len(file_memory.runs(user_id="ann")) == 1
        hs.autolog(disable=True)
        assert dspy.settings.callbacks == [mine]
        with pytest.raises(hs.errors.InvalidMemoryError):
            hs.autolog()


class TestNames:
    @pytest.mark.parametrize(
        ("guess", "right"),
        [
            ({"limit": 3}, "k=3"),
            ({"top_k": 3}, "k=3"),
            ({"n": 3}, "k=3"),
            ({"user_id": "ann"}, "where={'user_id': 'ann'}"),
            ({"session_id": "desk"}, "where={'session_id': 'desk'}"),
            ({"filter": {"user_id": "ann"}}, "where={'user_id': 'ann'}"),
            ({"threshold": 0.5}, "min_score"),
        ],
    )
    def test_a_search_names_the_right_argument(
        self, memory: hs.StepMemory, guess: dict[str, Any], right: str
    ) -> None:
        with pytest.raises(hs.errors.InvalidQueryError, match=re.escape(right)):
            memory.search("refund", **guess)

    def test_a_memory_exports_itself(self, memory: hs.StepMemory, tmp_path: Path) -> None:
        memory.add(action("refund"))
        assert memory.export(tmp_path / "steps.jsonl") == 1
        again = hs.StepMemory(":memory:", embedder="hashing")
        assert import_file(again, tmp_path / "steps.jsonl").added == 1

    def test_steps_are_a_data_frame(self, memory: hs.StepMemory) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        step = action("refund")
        step.metrics = hs.StepMetrics(duration_ms=3.0, cost=0.5)
        memory.add([step, action("cancel")])
        frame = memory.to_pandas({"tools": ["refund"]})
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame["tool"]) == ["refund"]
        assert (frame["duration_ms"][0], frame["cost"][0]) == (3.0, 0.5)
        assert "vector" not in frame
        assert len(hs.steps_frame(memory.find())) == len(hs.steps_frame([step, step])) == 2
        assert "tool" in hs.steps_frame([])

    def test_without_pandas_the_command_is_named(
        self, memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(hs.errors.MissingExtraError, match="pip install pandas"):
            memory.to_pandas()

    def test_a_run_says_what_it_took_and_gave(
        self, memory: hs.StepMemory, agent: dspy.Module
    ) -> None:
        with dspy.context(lm=react_lm()), hs.record(memory) as run:
            assert run.status == "running"
            agent(question="When to Seattle?")
        listed = memory.runs()[0]
        for each in (run, listed):
            assert each.status == "completed"
            assert each.tokens is not None
            assert each.tokens > 100
            assert each.cost is None or each.cost >= 0
            assert each.outputs is not None
            assert each.outputs["answer"] == "HAT742, at 9:40."
        assert run.cost == listed.cost
        with dspy.context(lm=answering("At 9:40.")), hs.record(memory) as run:
            dspy.Predict("question -> answer")(question="When?")
        assert run.outputs == memory.runs()[0].outputs == {"answer": "At 9:40."}
        with hs.record(memory) as run:
            pass
        assert (run.status, run.tokens, run.outputs) == ("", None, None)


class TestAtThePrompt:
    def test_one_of_each_is_one_readable_line(
        self, memory: hs.StepMemory, agent: dspy.Module
    ) -> None:
        with dspy.context(lm=react_lm()), hs.record(memory, session_id="desk") as run:
            agent(question="When to Seattle?")
        step, hit, listed = run.steps.steps[1], memory.search("flight")[0], memory.runs()[0]
        memory.session("trip").append({"role": "user", "content": "Where\nto?"})
        message = memory.session("trip").messages[0]
        for one in (step, hit, listed, message):
            assert "\n" not in repr(one)
            assert len(repr(one)) <= 200
        assert "find_flight" in repr(step)
        assert "Seattle" in repr(step)
        assert str(step.id) in repr(step)
        assert f"{hit.score:.3f}" in repr(hit)
        assert run.id in repr(listed)
        assert "completed" in repr(listed)
        assert repr(message) == "<message 1 of session 'trip', user: Where to?>"

    def test_a_run_draws_its_tree(self, memory: hs.StepMemory, agent: dspy.Module) -> None:
        with dspy.context(lm=react_lm()), hs.record(memory) as run:
            agent(question="When to Seattle?")
        assert repr(run) == str(run) == repr(run.steps)
        with hs.record(memory) as run:
            pass
        assert repr(run) == f"<run {run.id}, no steps>"
        memory.close()
        assert "closed" in repr(run)

    @pytest.mark.parametrize(
        ("outputs", "shown"),
        [
            ({"reasoning": "It hums.", "urgent": True}, "→ true"),
            ({"reasoning": "It hums.", "parts": ["rope", "wheel"]}, '→ ["rope", "wheel"]'),
            (
                {"reasoning": "Long.", "trip": {"to": "Oslo", "seats": 2}},
                '{"to": "Oslo", "seats": 2}',
            ),
            (
                {"reasoning": "Long.", "queue": "lifts", "urgent": True},
                "queue: lifts, urgent: true",
            ),
            ({"summary": "s" * 300, "queue": "lifts"}, "…, queue: lifts"),
            ({"reasoning": "Only this."}, "→ Only this."),
        ],
    )
    def test_a_row_shows_all_answers_and_not_the_reasoning(
        self,
        memory: hs.StepMemory,
        outputs: dict[str, Any],
        shown: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        step = action("triage")
        step.outputs = outputs
        memory.add(step)
        assert shown in str(memory.find())
        assert shown in repr(step)
        assert len(outputs) == 1 or "reasoning" not in str(memory.find())

    def test_a_reason_names_words_of_its_row_or_says_where_they_stand(
        self, memory: hs.StepMemory
    ) -> None:
        step = action("triage")
        step.inputs = {
            "tool": "triage",
            "purpose": "sort",
            "arguments": {"ticket": "The lift hums"},
        }
        step.outputs = {"reasoning": "A rope is frayed.", "queue": "lifts", "note": "Call Ana"}
        memory.add(step)
        hit = memory.search("lifts with frayed ropes, Ana", mode="lexical")[0]
        assert hit.why == "words: lifts, Ana; words in reasoning: frayed, ropes"
        hit = memory.search("reasoning about a lift", mode="lexical")[0]
        assert hit.why == "words: lift; words in its details: reasoning"


def test_a_file_of_an_embedder_that_is_not_here_says_how_to_go_on(tmp_path: Path) -> None:
    class Elsewhere(hs.embedders.HashingEmbedder):
        @property
        def model_id(self) -> str:
            return "sentence-transformers/all-MiniLM-L6-v2@0123456789ab"

    with hs.StepMemory(tmp_path / "steps.db", embedder=Elsewhere()) as memory:
        memory.add(action("refund"))
        memory.flush()
    with hs.StepMemory(tmp_path / "steps.db") as memory:
        with pytest.raises(hs.errors.EmbedderMismatchError, match="every installation") as caught:
            memory.search("refund")
        advice = re.search(r"memory\.reembed\(\"(\w+)\"\)", str(caught.value))
        assert advice is not None
        assert memory.search("refund", mode="lexical")
        memory.reembed(advice[1])
        assert memory.search("refund")


class TestRefusals:
    def test_a_context_of_another_users_session(self, memory: hs.StepMemory) -> None:
        memory.session("private", user_id="ann").append({"role": "user", "content": "It is 1234."})
        assert len(memory.session("private", user_id="ann").context().messages) == 1
        for name in ("private", "missing"):
            with pytest.raises(hs.errors.NotAllowedError, match="another user's"):
                memory.session(name, user_id="bob").context()

    def test_a_list_that_holds_nobody_lets_nobody_pass(self, memory: hs.StepMemory) -> None:
        memory.add(action("pay").model_copy(update={"user_id": "ann"}))
        for users in ([None], ["ann", None]):
            with pytest.raises(hs.errors.InvalidFilterError, match="user_id"):
                memory.find({"user_id": users})

    @pytest.mark.parametrize("address", [3, None])
    def test_a_copy_to_no_address(self, memory: hs.StepMemory, address: Any) -> None:
        with pytest.raises(hs.errors.UnsupportedAddressError, match="a text or a path"):
            memory.copy_to(address)

    def test_a_class_is_no_function(self, memory: hs.StepMemory) -> None:
        class Desk:
            pass

        with pytest.raises(hs.errors.InvalidSettingError, match="a method of Desk"):
            hs.record(memory)(Desk)

    def test_autolog_where_dspy_cannot_be_configured(self, memory: hs.StepMemory) -> None:
        dspy.configure(callbacks=[])
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(hs.errors.InvalidSettingError, match=r"with hs\.record"),
        ):
            pool.submit(hs.autolog, memory).result()

    def test_a_session_is_named_by_a_text(self, memory: hs.StepMemory) -> None:
        with pytest.raises(hs.errors.InvalidStepError, match="session_id is a text"):
            memory.session(3)  # pyright: ignore[reportArgumentType] - what is refused

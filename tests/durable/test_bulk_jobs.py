"""Bulk jobs: a worker is killed in the middle, another one ends them, nothing is done twice."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dspy
import pytest

pytest.importorskip("dbos", reason="needs the extra `durable`")

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.durable.bulk_jobs import BulkJob, JobRun, evaluation
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.embedders.hashing import HashingEmbedder
from hybridagi_steps.errors import InvalidSettingError, UnknownRunError
from hybridagi_steps.exchange import export_file

STEPS, EXAMPLES = 4_000, 12


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the memory is, with its jobs."""
    if request.param == "file":
        return str(tmp_path / "steps.db")
    return request.getfixturevalue("postgres_address")


@pytest.fixture(scope="module")
def steps_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of many steps."""
    file = tmp_path_factory.mktemp("jobs") / "steps.jsonl"
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(
            AgentStep(step_type=AgentStepType.Action, inputs={"purpose": f"step {number}"})
            for number in range(STEPS)
        )
        export_file(memory, file)
    return file


class Slowly(HashingEmbedder):
    """Embeds while a file says so, and notes how many texts it was given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(64)
        self.folder = folder

    def embed_documents(self, texts: Any) -> Any:
        """Embed."""
        here(self.folder, *texts)
        return super().embed_documents(texts)


def here(folder: Path, *done: str) -> None:
    """Note what is done; stay while a file says so that names how much may be done before."""
    log, hold = folder / "log", folder / "hold"
    log.touch()
    while hold.exists() and len(log.read_text().splitlines()) >= int(hold.read_text()):
        time.sleep(0.01)
    with log.open("a") as file:
        file.writelines(f"{name}\n" for name in done)


class Doubles(dspy.Module):
    """A program that notes what it was asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def forward(self, number: int) -> dspy.Prediction:
        """Answer."""
        here(self.folder, str(number))
        return dspy.Prediction(twice=2 * number)


def exact(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    """Whether an answer is right."""
    return example.twice == prediction.twice


def opened(place: str, folder: Path) -> DurableRunner:
    """Return what hands out jobs, and does those of the tests."""
    examples = [
        dspy.Example(number=n, twice=2 * n if n else 1).with_inputs("number")
        for n in range(EXAMPLES)
    ]

    def reembed(run: JobRun) -> str:
        run.memory.reembed(Slowly(folder), run.progress)
        return "done"

    def fail(run: JobRun) -> None:
        if (folder / "broken").exists():
            raise InvalidSettingError("it is broken")

    kinds: dict[str, Any] = {
        "quality": evaluation(Doubles(folder), examples, exact, at_once=2),
        "slowly": reembed,
        "fail": fail,
    }
    memory = StepMemory(place, embedder="hashing")
    return DurableRunner(memory=memory, poll_seconds=0.02, jobs=kinds)


def work(place: str, folder: str) -> None:
    """Be a worker until killed."""
    opened(place, Path(folder)).run_worker()


@contextmanager
def killed_worker(place: str, folder: Path) -> Generator[None]:
    """Run a worker process, and kill it at the end."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=(place, str(folder)))
    process.start()
    try:
        yield
    finally:
        assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


@contextmanager
def working(durable: DurableRunner) -> Generator[None]:
    """Have a worker in a thread for the length of the block."""
    stop = threading.Event()
    worker = threading.Thread(target=durable.run_worker, args=(stop,))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@pytest.fixture
def durable(place: str, tmp_path: Path) -> Generator[DurableRunner]:
    """What hands out jobs of a new memory."""
    made = opened(place, tmp_path)
    yield made
    made.close()
    made.memory.close()


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def ended(durable: DurableRunner, job_id: str) -> BulkJob:
    """Wait for the end of a job."""
    wait_for(lambda: durable.jobs.get(job_id).status not in ("waiting", "running"))
    return durable.jobs.get(job_id)


def test_an_import_whose_worker_was_killed_is_ended_by_another(
    durable: DurableRunner, place: str, tmp_path: Path, steps_file: Path
) -> None:
    job = durable.jobs.submit("import", path=str(steps_file))
    assert durable.jobs.get(job).status == "waiting"
    with killed_worker(place, tmp_path):
        wait_for(lambda: durable.jobs.get(job).done)
    begun = durable.memory.stats()["steps"]
    assert begun >= 500
    with working(durable):
        found = ended(durable, job)
    assert (found.status, found.error) == ("completed", None)
    assert found.done == found.total > 0
    assert found.result["already_there"] >= begun
    assert found.result["already_there"] + found.result["added"] == STEPS
    assert durable.memory.stats()["steps"] == durable.memory.stats()["embedded"] == STEPS
    assert durable.memory.verify() == []


def test_embedding_goes_on_where_it_was_cut_off(
    durable: DurableRunner, place: str, tmp_path: Path
) -> None:
    durable.memory.add(
        AgentStep(step_type=AgentStepType.Action, inputs={"purpose": f"text {number}"})
        for number in range(STEPS)
    )
    (tmp_path / "hold").write_text("1")
    job = durable.jobs.submit("slowly")
    with killed_worker(place, tmp_path):
        wait_for(lambda: durable.jobs.get(job).done)
    done = durable.jobs.get(job).done
    (tmp_path / "hold").unlink()
    with working(durable):
        assert ended(durable, job).result == "done"
    asked = Counter((tmp_path / "log").read_text().splitlines())
    assert len(asked) >= STEPS
    assert {asked[text] for text in asked} == {1}, "each text once"
    assert done > 0
    assert durable.memory.stats()["embedder"] == Slowly(tmp_path).model_id


def test_an_evaluation_asks_what_it_has_no_score_of(
    durable: DurableRunner, place: str, tmp_path: Path
) -> None:
    (tmp_path / "hold").write_text("2")
    job = durable.jobs.submit("quality")
    with killed_worker(place, tmp_path):
        wait_for(lambda: durable.jobs.get(job).done)
    done = durable.jobs.get(job).done
    (tmp_path / "hold").unlink()
    with working(durable):
        result = ended(durable, job).result
    assert result == {"score": 11 / 12, "scores": [0.0, *[1.0] * 11]}
    asked = Counter((tmp_path / "log").read_text().split())
    assert [asked[str(n)] for n in range(done)] == [1] * done
    assert set(asked) == {str(n) for n in range(EXAMPLES)}
    runs = durable.memory.iter_steps({"scope": "*", "metadata": {"job": job}})
    assert {step.score for step in runs if step.score is not None} == {0.0, 1.0}


def test_a_job_is_cancelled_and_goes_on(durable: DurableRunner, tmp_path: Path) -> None:
    never = durable.jobs.submit("quality")
    assert durable.jobs.cancel(never)
    job = durable.jobs.submit("quality")
    (tmp_path / "hold").write_text("2")
    with working(durable):
        wait_for(lambda: durable.jobs.get(job).done)
        assert durable.jobs.cancel(job)
        (tmp_path / "hold").unlink()
        assert not durable.jobs.cancel(job)
        found = ended(durable, job)
        assert (found.status, found.result) == ("cancelled", None)
        assert 0 < found.done < EXAMPLES
        assert durable.jobs.resume(job)
        assert ended(durable, job).status == "completed"
        assert not durable.jobs.resume(job)
    assert durable.jobs.get(never).status == "cancelled"
    assert [each.id for each in durable.jobs.list()] == [job, never]


def test_jobs_about_who_is_erased_are_erased(durable: DurableRunner) -> None:
    jobs, memory = durable.jobs, durable.memory
    memory.add(
        [
            AgentStep(step_type=AgentStepType.Action, inputs={"purpose": user}, user_id=user)
            for user in ("ann", "bob")
        ]
    )
    hers = jobs.submit("import", path="a.jsonl", user_id="ann")
    about = jobs.submit("nothing", where=[{"user_id": "ann"}])
    kept = [jobs.submit("import", path="ann.jsonl", user_id="bob"), jobs.submit("reembed")]
    assert memory.purge({"user_id": "ann"}) == 1
    assert {job.id for job in jobs.list()} == {*kept}
    for job in (hers, about):
        with pytest.raises(UnknownRunError):
            jobs.get(job)


def test_a_job_that_failed_says_why_and_goes_on(durable: DurableRunner, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    broken, unknown = durable.jobs.submit("fail"), durable.jobs.submit("nothing", of="ours")
    with working(durable):
        assert "it is broken" in str(ended(durable, broken).error)
        assert ended(durable, broken).status == "failed"
        assert "knows no jobs 'nothing'" in str(ended(durable, unknown).error)
        (tmp_path / "broken").unlink()
        assert durable.jobs.resume(broken)
        assert ended(durable, broken).status == "completed"
    with pytest.raises(UnknownRunError):
        durable.jobs.cancel("no such job")
    with pytest.raises(InvalidSettingError, match="JSON"):
        durable.jobs.submit("import", path=tmp_path)
    assert durable.memory.clear().unreached == ()
    assert durable.jobs.list() == []


def test_the_command_line_hands_out_lists_and_stops(
    tmp_path: Path, steps_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = ["--db", str(tmp_path / "steps.db")]

    def said(*words: str) -> str:
        assert main([*words, *db]) == 0
        return capsys.readouterr().out

    with StepMemory(tmp_path / "steps.db", embedder="hashing"):
        assert json.loads(said("jobs", "--json")) == []
    assert not (tmp_path / "steps.db.runs").exists(), "who looks makes no queue"
    job = said("import", str(steps_file), "--background").split(":")[0]
    other = said("reembed", "hashing", "--background").split(":")[0]
    assert said("jobs", "--cancel", other).count("cancelled") == 1
    assert main(["jobs", "--cancel", other, *db]) == 2
    assert "is cancelled: nothing changed" in capsys.readouterr().err
    assert "waiting" in said("jobs", "--resume", other)
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        DurableRunner(memory=memory, poll_seconds=0.02) as durable,
        working(durable),
    ):
        assert "completed" in said("jobs", "--watch")
    [second, first] = json.loads(said("jobs", "--json"))
    assert (first["id"], first["kind"], first["status"]) == (job, "import", "completed")
    assert first["result"]["added"] == STEPS
    assert second["result"]["steps"] == STEPS

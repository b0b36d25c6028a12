"""What a person sees in a plot: how many points and bars, how long, what they are called."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="plots need the extra `plot`")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import hybridagi_steps as hs
from hybridagi_steps import plots
from hybridagi_steps.errors import (
    InvalidFilterError,
    InvalidQueryError,
    MissingExtraError,
    UnknownRunError,
)
from hybridagi_steps.plots import canvas, step_map
from hybridagi_steps.records.message import utc_now

NOON = utc_now().replace(hour=12, minute=0, second=0, microsecond=0)


def action(tool: str | None = "look_up", **fields: Any) -> hs.AgentStep:
    """Return an Action of a tool."""
    inputs = {"purpose": f"use {tool}", **({} if tool is None else {"tool": tool})}
    return hs.AgentStep.model_validate({"step_type": "Action", "inputs": inputs, **fields})


def length_of_purpose(step: hs.AgentStep) -> int:
    """Return what a person may colour by, too."""
    return len(step.purpose)


def timed(begins: float, took: float, **fields: Any) -> hs.AgentStep:
    """Return an Action that began `begins` milliseconds after noon and took `took`."""
    ended = NOON + timedelta(milliseconds=begins + took)
    return action(created_at=ended, metrics={"duration_ms": took}, run_id="run", **fields)


def program_run() -> list[hs.AgentStep]:
    """Return a run of 1 s: a program in a program, in which the second of two steps fails."""

    def end(of: str, milliseconds: float) -> hs.AgentStep:
        return hs.AgentStep(
            step_type=hs.AgentStepType.ProgramEnd,
            inputs={"program": of},
            program_id=of,
            run_id="run",
            hop=9,
            created_at=NOON + timedelta(milliseconds=milliseconds),
        )

    def call(name: str, milliseconds: float, program_id: str | None) -> hs.AgentStep:
        return hs.AgentStep(
            id=name,
            step_type=hs.AgentStepType.ProgramCall,
            inputs={"program": name},
            program_id=program_id,
            run_id="run",
            created_at=NOON + timedelta(milliseconds=milliseconds),
        )

    return [
        call("outer", 0, None),
        call("inner", 100, "outer"),
        timed(150, 250, program_id="inner", hop=2),
        timed(400, 300, program_id="inner", hop=3, status="error"),
        end("inner", 800),
        end("outer", 1_000),
    ]


def legend_of(ax: Axes) -> list[str]:
    """Return the legend's entries, top down."""
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def points_of(ax: Axes) -> np.ndarray[Any, Any]:
    """Return all points drawn, shape (n, 2)."""
    offsets = [np.asarray(group.get_offsets()) for group in ax.collections]
    return np.concatenate(offsets) if offsets else np.empty((0, 2))


def bars_of(ax: Axes) -> list[tuple[float, float, float]]:
    """Return (row, beginning, length) of each bar, in the order drawn."""
    return [
        (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())  # pyright: ignore[reportAttributeAccessIssue] - bars are rectangles
        for bar in ax.patches
    ]


def rows_of(ax: Axes) -> list[str]:
    """Return the names of the rows, top down."""
    return [label.get_text() for label in ax.get_yticklabels()]


def said_in(ax: Axes) -> list[str]:
    """Return the texts inside the axes."""
    return [text.get_text() for text in ax.texts]


def title_of(ax: Axes) -> str:
    """Return the title."""
    return ax.get_title(loc="left")


class TestMap:
    def test_every_step_is_a_point_and_every_tool_a_group_in_the_legend(
        self, memory: hs.StepMemory
    ) -> None:
        memory.add([action("search", inputs={"purpose": f"p{n}", "tool": "a"}) for n in range(4)])
        memory.add([action("book", run_id=f"r{n}", outputs={"result": n}) for n in range(3)])
        memory.add(action(None))
        ax = plots.embedding_map(memory)
        assert points_of(ax).shape == (8, 2)
        assert legend_of(ax) == ["a (4)", "book (3)", "no tool (1)"]
        assert title_of(ax) == "Map of 8 steps"
        assert "component 1" in ax.get_xlabel()
        assert "of the variance" in ax.get_ylabel()

    def test_the_map_shows_what_lies_together(self, real_steps: list[hs.AgentStep]) -> None:
        with hs.StepMemory(":memory:", embedder="wordllama") as memory:
            memory.add(real_steps)
            ax = plots.embedding_map(memory, color_by="metadata.domain")
        groups = {str(g.get_label()).split()[0]: g for g in ax.collections}
        centres = {k: np.asarray(g.get_offsets()).mean(axis=0) for k, g in groups.items()}
        assert sum(len(np.asarray(g.get_offsets())) for g in ax.collections) == 848
        near = np.asarray(groups["hotpotqa"].get_offsets())
        to_own = np.linalg.norm(near - centres["hotpotqa"], axis=1)
        to_other = np.linalg.norm(near - centres["toolbench"], axis=1)
        assert (to_own < to_other).mean() > 0.9

    def test_it_is_the_same_map_every_time(
        self, memory: hs.StepMemory, real_steps: list[hs.AgentStep]
    ) -> None:
        memory.add(real_steps[:60])
        first, second = plots.embedding_map(memory), plots.embedding_map(memory)
        assert np.array_equal(points_of(first), points_of(second))

    @pytest.mark.parametrize(
        ("color_by", "entries"),
        [
            ("run_id", ["r1 (2)", "no run_id (1)"]),
            ("step_type", ["Action (3)"]),
            ("status", ["ok (2)", "error (1)"]),
            ("metadata.team", ["no team (2)", "blue (1)"]),
            (length_of_purpose, ["10 (2)", "8 (1)"]),
        ],
    )
    def test_it_colours_by_what_one_asks(
        self, memory: hs.StepMemory, color_by: Any, entries: list[str]
    ) -> None:
        memory.add([action("search", run_id="r1"), action("search", run_id="r1", status="error")])
        memory.add(action("book", metadata={"team": "blue"}))
        assert legend_of(plots.embedding_map(memory, color_by=color_by)) == entries

    def test_what_it_cannot_colour_by_is_named_with_what_it_can(
        self, memory: hs.StepMemory
    ) -> None:
        with pytest.raises(InvalidQueryError, match=r"tool, program, .* got 'colour'"):
            plots.embedding_map(memory, color_by="colour")

    def test_a_filter_chooses_the_steps(self, memory: hs.StepMemory) -> None:
        memory.add([action("a"), action("b"), action("b", scope="evaluate:1")])
        assert legend_of(plots.embedding_map(memory, {"tools": "b"})) == ["b (1)"]
        with pytest.raises(InvalidFilterError, match="colour"):
            plots.embedding_map(memory, {"colour": "b"})

    def test_groups_beyond_the_palette_are_one_grey_group(self, memory: hs.StepMemory) -> None:
        memory.add([action(f"tool{n:02}") for n in range(20) for _ in range(30 - n)])
        entries = legend_of(plots.embedding_map(memory))
        assert len(entries) == len(canvas.PALETTE)
        assert entries[0] == "tool00 (30)"
        assert entries[-1].startswith("14 others (")

    def test_a_large_memory_is_sampled_and_says_so(
        self, memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(step_map, "MOST_POINTS", 50)
        memory.add([action(f"tool{n % 3}") for n in range(120)])
        first, second = plots.embedding_map(memory), plots.embedding_map(memory)
        assert len(points_of(first)) == 50
        assert title_of(first) == "Map of 50 steps, sampled from 120"
        assert legend_of(first) == legend_of(second)

    def test_steps_without_an_embedding_are_counted(self) -> None:
        class Half:
            model_id, dimension = "half@1", 3

            def embed_documents(self, texts: Any) -> Any:
                rows = [[np.nan] * 3 if "bad" in text else [1.0, len(text), 2.0] for text in texts]
                return np.array(rows, np.float32)

            embed_queries = embed_documents

        with hs.StepMemory(":memory:", embedder=Half()) as memory:
            memory.add([action("good"), action("fine!"), action("bad")])
            ax = plots.embedding_map(memory)
        assert title_of(ax) == "Map of 2 steps; 1 without an embedding left out"

    @pytest.mark.parametrize("count", [1, 2])
    def test_very_few_steps_are_a_map_too(self, memory: hs.StepMemory, count: int) -> None:
        memory.add([action(f"tool{n}") for n in range(count)])
        points = points_of(plots.embedding_map(memory))
        assert points.shape == (count, 2)
        assert np.isfinite(points).all()

    def test_an_empty_memory_says_that_there_is_nothing(self, memory: hs.StepMemory) -> None:
        assert said_in(plots.embedding_map(memory)) == ["no embedded step matches"]


class TestPlane:
    def test_it_keeps_distances_of_what_is_flat(self) -> None:
        random = np.random.default_rng(3)
        flat = random.normal(size=(40, 2)) * [5.0, 2.0]
        turned, _ = np.linalg.qr(random.normal(size=(7, 7)))
        points, shares = step_map.plane(flat @ turned[:2] + 9.0)
        apart = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        assert np.allclose(np.linalg.norm(points[:, None] - points[None], axis=2), apart)
        assert sum(shares) == pytest.approx(1.0)
        assert shares[0] > shares[1] > 0

    def test_it_is_the_one_of_the_two_largest_components(self) -> None:
        random = np.random.default_rng(5)
        vectors = random.normal(size=(300, 400)) * np.geomspace(6.0, 0.3, 400)
        centred = vectors - vectors.mean(axis=0)
        variances, directions = np.linalg.eigh(centred.T @ centred)
        points, shares = step_map.plane(vectors)
        assert shares == pytest.approx(variances[:-3:-1] / variances.sum(), rel=1e-4)
        assert np.allclose(abs(points), abs(centred @ directions[:, :-3:-1]), atol=0.05)

    def test_one_dimension_is_a_line(self) -> None:
        points, shares = step_map.plane(np.array([[1.0], [2.0], [4.0]]))
        assert np.allclose(points[:, 1], 0)
        assert shares == pytest.approx((1.0, 0.0))


class TestTimeline:
    def test_bars_begin_and_last_as_the_steps_did(self) -> None:
        ax = plots.timeline(program_run())
        expected = [(0, 0, 1.0), (1, 0.1, 0.7), (2, 0.15, 0.25), (3, 0.4, 0.3)]
        assert np.allclose(sorted(set(bars_of(ax)))[:3], expected[:3])
        assert np.allclose(bars_of(ax)[-1], expected[3])
        assert ax.get_xlabel() == "seconds since the start"

    def test_rows_are_named_and_stand_inside_their_program(self) -> None:
        names = rows_of(plots.timeline(program_run()))
        assert [name.strip() for name in names] == ["0 outer", "0 inner", "2 look_up", "3 look_up"]
        indents = [len(name) - len(name.lstrip()) for name in names]
        assert indents[0] < indents[1] < indents[2] == indents[3]

    def test_failures_are_marked_named_and_counted(self) -> None:
        ax = plots.timeline(program_run())
        assert legend_of(ax) == ["ProgramCall", "Action", "not ok"]
        assert said_in(ax) == ["1.0 s", "700 ms", "250 ms", "300 ms, error"]
        assert title_of(ax) == "6 steps in 1.0 s, 1 not ok"
        marked = ax.patches[-1]
        assert marked.get_hatch()
        assert to_hex(marked.get_edgecolor()).upper() == canvas.RED

    def test_a_step_without_a_duration_is_a_dot(self) -> None:
        steps = [action(created_at=NOON + timedelta(seconds=n), run_id="run") for n in range(3)]
        ax = plots.timeline(steps)
        assert points_of(ax).tolist() == [[0, 0], [1, 1], [2, 2]]
        assert legend_of(ax) == ["duration unknown"]
        assert title_of(ax) == "3 steps"

    @pytest.mark.parametrize("took", [float("inf"), float("nan"), -5.0, 1e300])
    def test_a_duration_that_cannot_be_is_unknown(self, took: float) -> None:
        wrong = action(metrics={"duration_ms": took}, created_at=NOON, run_id="run")
        ax = plots.timeline([wrong, timed(0, 5)])
        assert sorted(legend_of(ax)) == ["Action", "duration unknown"]
        assert title_of(ax) == "2 steps in 5 ms"

    def test_a_memory_shows_its_newest_run_or_the_one_asked_for(
        self, memory: hs.StepMemory
    ) -> None:
        memory.add([action("old", run_id="first"), action("older", run_id="first")])
        memory.add(action("new", run_id="second"))
        memory.add(action("tried", run_id="trial", scope="evaluate:1"))
        assert [name.strip() for name in rows_of(plots.timeline(memory))] == ["0 new"]
        assert [name.strip() for name in rows_of(plots.timeline(memory, "trial"))] == ["0 tried"]
        assert len(rows_of(plots.timeline(memory, "first"))) == 2
        assert len(rows_of(plots.timeline(memory.run("first")))) == 2
        with pytest.raises(UnknownRunError, match="third"):
            plots.timeline(memory, "third")

    def test_several_runs_at_once_are_refused(self) -> None:
        with pytest.raises(InvalidQueryError, match="2 runs"):
            plots.timeline([action(run_id="a"), action(run_id="b")])

    def test_programs_inside_each_other_are_drawn_once(self) -> None:
        steps = program_run()
        steps[0].program_id = "inner"
        assert len(rows_of(plots.timeline(steps))) == 4

    def test_a_program_that_never_ended_reaches_to_its_last_step(self) -> None:
        steps = [step for step in program_run() if step.step_type != "ProgramEnd"]
        ax = plots.timeline(steps)
        assert said_in(ax)[:2] == ["700 ms", "600 ms"]

    def test_a_long_run_is_cut_and_says_so(self) -> None:
        ax = plots.timeline([timed(10 * n, 5, hop=n) for n in range(100)])
        assert len(rows_of(ax)) == 80
        assert title_of(ax) == "100 steps in 995 ms; the first 80 rows are shown"

    def test_nothing_to_draw_says_so(self, memory: hs.StepMemory) -> None:
        assert said_in(plots.timeline(memory)) == ["no steps"]


class TestHistory:
    def test_activity_counts_steps_per_day_and_type(self, memory: hs.StepMemory) -> None:
        memory.add([action(created_at=NOON) for _ in range(3)])
        memory.add(action(created_at=NOON - timedelta(days=2)))
        memory.add(hs.AgentStep(step_type=hs.AgentStepType.Decision, created_at=NOON))
        ax = plots.activity(memory)
        heights = [bar.get_height() for bar in ax.patches]  # pyright: ignore[reportAttributeAccessIssue] - bars are rectangles
        assert [height for height in heights if height] == [1, 3, 1]
        assert ax.patches[-1].get_y() == 3  # pyright: ignore[reportAttributeAccessIssue] - stacked
        assert legend_of(ax) == ["Action (4)", "Decision (1)"]
        assert title_of(ax) == "5 steps on 2 days"
        assert f"{NOON:%d %b}" in [label.get_text() for label in ax.get_xticklabels()]

    def test_activity_of_many_years_shows_the_last(self, memory: hs.StepMemory) -> None:
        memory.add([action(created_at=NOON), action(created_at=NOON - timedelta(days=4_000))])
        assert title_of(plots.activity(memory)) == "1 step on 1 day; 1 older ones left out"

    def test_outcomes_stack_how_calls_ended(self, memory: hs.StepMemory) -> None:
        memory.add([action("search"), action("search"), action("search", status="error")])
        memory.add([action("book"), action(None)])
        ax = plots.outcomes(memory)
        assert rows_of(ax) == ["search", "book"]
        assert [bar for bar in bars_of(ax) if bar[2]] == [(0, 0, 2), (1, 0, 1), (0, 2, 1)]
        assert said_in(ax) == ["3, 66% ok", "1, all ok"]
        assert legend_of(ax) == ["ok (3)", "error (1)"]
        assert title_of(ax) == "4 calls of 2 tools"

    def test_outcomes_of_many_tools_say_what_is_left_out(self, memory: hs.StepMemory) -> None:
        memory.add([action(f"tool{n:02}") for n in range(25)])
        ax = plots.outcomes(memory)
        assert len(rows_of(ax)) == 20
        assert title_of(ax) == "20 of 25 calls: the 20 most used of 25 tools"

    @pytest.mark.parametrize("draw", [plots.activity, plots.outcomes])
    def test_nothing_to_draw_says_so(self, memory: hs.StepMemory, draw: Any) -> None:
        assert "matches" in said_in(draw(memory))[0]


ALL = [plots.embedding_map, plots.timeline, plots.activity, plots.outcomes]


@pytest.mark.parametrize("draw", ALL)
class TestEveryPlot:
    def test_it_is_a_picture_without_overlaps(self, memory: hs.StepMemory, draw: Any) -> None:
        memory.add(program_run())
        ax = draw(memory)
        figure = ax.figure
        assert isinstance(figure, Figure)
        assert ax._repr_png_().startswith(b"\x89PNG")
        FigureCanvasAgg(figure).draw()
        legend = ax.get_legend().get_window_extent()
        assert legend.x0 >= ax.get_window_extent().x1  # beside the axes
        whole = ax.get_tightbbox()
        assert whole.x0 > -1  # inside the picture, give or take a rounded pixel
        assert whole.x1 < figure.bbox.x1 + 1
        for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            for one, other in pairwise(boxes):
                assert not one.overlaps(other)

    def test_it_draws_where_one_says(self, memory: hs.StepMemory, draw: Any) -> None:
        memory.add(program_run())
        left, right = Figure(figsize=(12, 4)).subplots(1, 2)
        assert draw(memory, ax=right) is right
        assert not left.has_data()
        assert right.has_data()

    def test_odd_names_are_shown_as_they_are(self, memory: hs.StepMemory, draw: Any) -> None:
        memory.add([action("_hidden"), action("$5 or $6_{x}"), action("a\nb"), action("x" * 500)])
        with warnings.catch_warnings(action="error"):
            ax = draw(memory)
            assert ax._repr_png_()
        if draw in (plots.embedding_map, plots.outcomes):
            names = legend_of(ax) if draw is plots.embedding_map else rows_of(ax)
            assert len(names) == 4
            assert all(len(name) < 45 for name in names)

    def test_without_matplotlib_it_names_the_extra(
        self, memory: hs.StepMemory, draw: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "hybridagi_steps.plots.shown_axes", raising=False)
        monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
        with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[plot\]"):
            draw(memory)


def test_no_plot_loads_pyplot() -> None:
    code = (
        "import sys, hybridagi_steps as hs\n"
        "m = hs.StepMemory(':memory:', embedder='hashing')\n"
        "m.add(hs.AgentStep(step_type='Action', inputs={'purpose': 'p', 'tool': 't'}))\n"
        "assert 'matplotlib' not in sys.modules\n"
        "for draw in sys.argv[1:]:\n"
        "    assert getattr(hs.plots, draw)(m)._repr_png_()\n"
        "    assert not {'matplotlib.pyplot', 'dspy'} & set(sys.modules), draw\n"
    )
    environment = {**os.environ, "MPLBACKEND": "agg"}
    names = [draw.__name__ for draw in ALL]
    subprocess.run([sys.executable, "-c", code, *names], check=True, env=environment)


class TestContextUse:
    def context(self, budget: int) -> Any:
        said = [("user", "Cancel the flight " * 20), ("assistant", "Why? " * 20), ("user", "Ill.")]
        steps = [hs.Step(session_id="s", role=hs.MessageRole(who), content=t) for who, t in said]
        return hs.ContextBuilder(budget=budget).build(steps=steps, system_prompt="Be kind.")

    def test_each_context_is_a_bar_as_long_as_its_tokens(self) -> None:
        contexts = [self.context(60), self.context(2_000)]
        axes = hs.plots.context_use(contexts)
        kept = [0.0, 0.0]
        for container in axes.containers:
            if container.get_label() != "left out":
                for place, bar in enumerate(container):
                    kept[place] += bar.get_width()
        assert kept == [context.receipt.tokens for context in contexts]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["60", "2,000"]

    def test_what_was_left_out_shows(self) -> None:
        axes = hs.plots.context_use(self.context(60))
        left_out = axes.containers[-1]
        assert left_out.get_label() == "left out"
        assert sum(bar.get_width() for bar in left_out) > 0

    def test_no_context_is_said_so(self) -> None:
        assert hs.plots.context_use([]).texts[0].get_text() == "no context"
        with pytest.raises(hs.errors.InvalidSettingError, match="ContextBuilder"):
            hs.plots.context_use(["no context"])  # pyright: ignore[reportArgumentType]

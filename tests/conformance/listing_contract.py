"""What every store promises about pages of runs and of recorded sessions, however they lie.

Made-up memories are listed in plain Python beside it: runs that overlap, users and scopes that
change within a run, sessions that steps alone name and others with messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from conformance.samples import SessionStepStore, message, step
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.stores.sql.message_units import MessageUnits

AT_ONCE = {"FEWEST_ROWS": 1, "ROWS_OF_EACH": 1, "PART_OF_ROWS": 1}
WHERES: list[dict[str, Any]] = [
    {},
    {"scope": EVERY_SCOPE},
    {"scope": "try"},
    {"user_id": "ann"},
    {"user_id": "ann", "scope": EVERY_SCOPE},
    {"user_id": "nobody"},
    {"status": "error"},
    {"status": "error", "user_id": "bob", "scope": EVERY_SCOPE},
    {"session_id": "s3", "scope": EVERY_SCOPE},
    {"session_id": "talk", "status": "ok"},
    {"run_id": "r2"},
    {"run_id": "r2", "status": "error", "scope": EVERY_SCOPE},
]


def made_up(chance: Random, steps: int) -> list[AgentStep]:
    """Return steps in their order: some runs are short, some stay open beside many others."""
    made: list[AgentStep] = []
    for n in range(steps):
        run = n // 6 if chance.random() < 0.7 else chance.randrange(1 + n // 6)
        owner = "ann" if run // 2 % 3 else "bob"
        known = {
            "run_id": f"r{run}" if chance.random() < 0.9 else None,
            "session_id": chance.choice([f"s{run // 2}", f"s{run // 2}", "talk", None]),
            "user_id": owner if chance.random() < 0.95 else None,
            "scope": "try" if run % 4 == 0 and chance.random() < 0.6 else None,
            "status": "error" if chance.random() < 0.05 else "ok",
        }
        made.append(step(hop=chance.randrange(9), **known))
    return made


def grouped(steps: Iterable[AgentStep], key: str) -> dict[str, list[tuple[int, AgentStep]]]:
    found: dict[str, list[tuple[int, AgentStep]]] = {}
    for row, one in enumerate(steps):
        if (name := getattr(one, key)) is not None:
            found.setdefault(name, []).append((row, one))
    return found


def runs_of(steps: list[AgentStep], where: dict[str, Any]) -> list[str]:
    """Return the runs that are asked for, the one begun last first."""
    asked, scope = dict(where), where.get("scope")
    asked.pop("scope", None)
    user = asked.get("user_id")

    def fits(run: list[AgentStep]) -> bool:
        return (
            (scope == EVERY_SCOPE or scope in {one.scope for one in run})
            and (user is None or {one.user_id for one in run} == {user})
            and any(all(getattr(one, k) == v for k, v in asked.items()) for one in run)
        )

    runs = grouped(steps, "run_id")
    found = [(of[0][0], run) for run, of in runs.items() if fits([one for _, one in of])]
    return [run for _, run in sorted(found, reverse=True)]


def recorded_of(steps: list[AgentStep], user: str | None) -> list[tuple[str, int, str | None]]:
    """Return the sessions that steps alone name, the last written first, with runs and user."""
    found: list[tuple[int, tuple[str, int, str | None]]] = []
    for session, of in grouped(steps, "session_id").items():
        users = {one.user_id for _, one in of}
        if session != "talk" and (user is None or users == {user}):
            runs = {one.run_id for _, one in of} - {None}
            found.append(
                (of[-1][0], (session, len(runs), users.pop() if len(users) == 1 else None))
            )
    return [known for _, known in sorted(found, reverse=True)]


class ListingContract:
    """`runs` and recorded `sessions`, on pages that the newest steps hold and on others."""

    @pytest.fixture(params=[True, False], ids=["among the newest", "among all"])
    def steps(
        self, request: pytest.FixtureRequest, store: SessionStepStore, monkeypatch: Any
    ) -> list[AgentStep]:
        chance = Random(16)
        if request.param:
            for name, least in AT_ONCE.items():
                monkeypatch.setattr(f"hybridagi_steps.stores.sql.tables.{name}", least)
            monkeypatch.setattr("hybridagi_steps.stores.sql.sessions._FEW", 1)
        made = made_up(chance, 200)
        store.append(made[:90])
        store.commit("talk", [message()], [])  # what names it from here on belongs to it
        store.append(made[90:150])
        for one in made[150:]:
            store.append([one])
        store.commit("talk", [message()], [step(session_id="s0")])  # no newest step of s0
        gone = {str(one.id) for one in chance.sample(made, 20)}
        store.delete(sorted(gone))
        return [one for one in made if str(one.id) not in gone]

    @pytest.mark.parametrize("where", WHERES, ids=str)
    def test_pages_of_runs(
        self, store: SessionStepStore, steps: list[AgentStep], where: dict[str, Any]
    ) -> None:
        expected = runs_of(steps, where)
        for limit in (1, 3, 99):
            for offset in (0, 1, 2, 7, 30):
                found = store.runs(limit=limit, offset=offset, where=StepFilter(**where))
                assert [run.run_id for run in found] == expected[offset : offset + limit]
        if where == {"scope": EVERY_SCOPE}:
            assert [run.run_id for run in store.runs(limit=5)] == expected[:5]

    @pytest.mark.parametrize("user", [None, "ann", "bob", "nobody"])
    def test_pages_of_recorded_sessions(
        self, store: SessionStepStore, steps: list[AgentStep], user: str | None
    ) -> None:
        expected = recorded_of(steps, user)
        for limit in (1, 3, 99):
            for offset in (0, 1, 2, 7):
                page = {"limit": limit, "offset": offset}
                found = store.sessions(**page, user_id=user, recorded=True)
                known = [(each.session_id, each.runs, each.user_id) for each in found]
                assert known == expected[offset : offset + limit]

    def test_ids_that_begin_alike(self, store: SessionStepStore) -> None:
        assert isinstance(store, MessageUnits)
        names = ["ab", "ab-1", "ab-\U0001f600", "a", "b", "Ab", "ab%"]
        store.append([step(id=name, run_id=run) for name in names for run in [f"{name}~"]])
        store.append([step(id=f"c{n}", run_id="ab-1~") for n in range(200)])
        store.commit("s", [message(id="ab-said"), message(id="said")], [])
        steps, runs = store.ids_beginning("ab", 9)
        assert steps == sorted(["ab", "ab%", "ab-1", "ab-said", "ab-\U0001f600"])
        assert runs == sorted(["ab%~", "ab-1~", "ab-\U0001f600~", "ab~"])
        assert store.ids_beginning("ab-", 2) == (["ab-1", "ab-said"], runs[1:3])
        assert store.ids_beginning("ab-1~", 2) == ([], ["ab-1~"])
        assert store.ids_beginning("\ud800", 2) == ([], [])

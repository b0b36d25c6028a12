"""What every store promises about filters: each key of a StepFilter, asked three ways."""

# A test's name says what it holds.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import numpy as np
import pytest

from conformance.samples import EVERYTHING, NASTY, ids, step
from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.filters import StepFilter


class FilterContract:
    """`find`, `rows` and `iter_steps` under every key of a StepFilter."""

    def matching(self, store: StepStore, **where: object) -> list[str]:
        """Ask all three ways, which must agree."""
        asked = StepFilter.of(where)
        found = ids(store.find(asked, limit=1000))
        rows = store.rows(asked)
        assert rows.dtype == np.int64
        assert sorted(ids(list(store.read(rows.tolist()).values()))) == sorted(found)
        assert sorted(ids(list(store.iter_steps(asked)))) == sorted(found)
        return found

    def test_scope_hides_trials_unless_asked(self, store: StepStore) -> None:
        store.append([step(id="own"), step(id="c", scope="compile:1"), step(id="e", scope="e:1")])
        assert self.matching(store) == ["own"]
        assert self.matching(store, scope="*") == ["own", "c", "e"]
        assert self.matching(store, scope="compile:1") == ["c"]

    def test_stored_order_and_pages(self, store: StepStore) -> None:
        store.append([step(id=str(n), hop=9 - n) for n in range(5)])
        assert ids(store.find(EVERYTHING, limit=2, offset=1)) == ["1", "2"]
        assert ids(store.find(EVERYTHING, limit=2, newest_first=True)) == ["4", "3"]
        assert store.find(EVERYTHING, limit=2, offset=9) == []
        assert store.find(EVERYTHING, limit=0) == []

    def test_a_run_is_ordered_by_hop(self, store: StepStore) -> None:
        hops = [("c", 2), ("a", 0), ("b", 1), ("b2", 1)]
        store.append([step(id=name, run_id="r", hop=hop) for name, hop in hops])
        run = StepFilter(run_id="r")
        assert ids(store.find(run, limit=9)) == ["a", "b", "b2", "c"]
        assert ids(store.find(run, limit=2, newest_first=True)) == ["c", "b2"]

    def test_users_are_those_that_matching_steps_name(self, store: StepStore) -> None:
        named = [("a", "ann"), ("b", "ann"), ("c", "bob"), ("d", None)]
        store.append([step(id=name, user_id=user, session_id="s") for name, user in named])
        store.append([step(id="trial", user_id="eve", session_id="s", scope="compile:x")])
        own, all_scopes = StepFilter(session_id="s"), StepFilter(session_id="s", scope="*")
        assert sorted(store.users(own, limit=9)) == ["ann", "bob"]
        assert sorted(store.users(all_scopes, limit=9)) == ["ann", "bob", "eve"]
        assert len(store.users(own, limit=1)) == 1
        assert store.users(StepFilter(session_id="other"), limit=9) == []

    def test_equal_columns(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r", session_id="s", user_id="u"), step(id="b")])
        for key, value in {"run_id": "r", "session_id": "s", "user_id": "u"}.items():
            assert self.matching(store, **{key: value}) == ["a"]
            assert self.matching(store, **{key: "other"}) == []
            assert self.matching(store, **{key: "\ud800"}) == []

    def test_lists_mean_any(self, store: StepStore) -> None:
        store.append(
            [
                step(id="a", inputs={"tool": "grep"}, status="error"),
                step(id="b", inputs={"tool": "sed"}, step_type="Decision"),
                step(id="c", inputs={"tool": 5}, status="partial"),
                step(id="d"),
            ]
        )
        assert self.matching(store, tools=["grep", "sed"]) == ["a", "b"]
        assert self.matching(store, tools="5") == []
        assert self.matching(store, tools=[]) == []
        assert self.matching(store, status=["error", "partial"]) == ["a", "c"]
        assert self.matching(store, step_types="Decision") == ["b"]

    def test_several_users_and_runs(self, store: StepStore) -> None:
        store.append(
            [step(id=name, user_id=name, run_id=name, hop=-n) for n, name in enumerate("abc")]
        )
        store.append([step(id="d"), step(id="trial", user_id="a", scope="compile:x")])
        for key in ("user_id", "run_id"):
            assert self.matching(store, **{key: ["a", "c"]}) == ["a", "c"]
            assert self.matching(store, **{key: ["c", "\ud800", "x"]}) == ["c"]
            assert self.matching(store, **{key: ["x", "y"]}) == []
            assert self.matching(store, exclude={key: ["a", "c"]}) == ["b", "d"]
        assert self.matching(store, user_id=["a", "b"], run_id=["b", "c"]) == ["b"]
        assert self.matching(store, user_id=["a", "b"], trust="own", scope="*") == [
            "a",
            "b",
            "trial",
        ]

    def test_a_key_in_the_body(self, store: StepStore) -> None:
        inside = {"predictor": "p", "result": "\x00 and \\u0000"}
        store.append(
            [
                step(id="a", predictor="p", outputs=inside),
                step(id="b", predictor="q", outputs=inside),
                step(id="c", outputs=inside, metadata={"predictor": "p"}),
            ]
        )
        assert self.matching(store, predictors="p") == ["a"]
        assert self.matching(store, predictors=["q", "p"]) == ["a", "b"]
        assert self.matching(store, predictors=["q", "\ud800"]) == ["b"]
        assert self.matching(store, predictors=[]) == []

    def test_a_program_is_its_calls_ends_and_what_stands_directly_inside(
        self, store: StepStore
    ) -> None:
        call = step(id=uuid4(), step_type="ProgramCall", inputs={"program": "main"})
        inner = step(
            id="inner", step_type="ProgramCall", inputs={"program": "sub"}, program_id=str(call.id)
        )
        store.append(
            [
                call,
                step(id="inside", program_id=str(call.id)),
                inner,
                step(id="deeper", program_id="inner"),
                step(id="end", step_type="ProgramEnd", inputs={"program": "main"}),
                step(id="action", inputs={"program": "main"}),
                step(id="outside"),
            ]
        )
        assert self.matching(store, program="main") == [str(call.id), "inside", "inner", "end"]
        assert self.matching(store, program="sub") == ["inner", "deeper"]
        assert self.matching(store, program_id=call.id) == ["inside", "inner"]
        assert self.matching(store, program_id=str(call.id).upper()) == ["inside", "inner"]
        assert self.matching(store, program="\ud800") == []

    def test_min_score_is_the_steps_own_else_its_runs(self, store: StepStore) -> None:
        store.append([step(id="own", score=0.2, run_id="r"), step(id="runs", run_id="r")])
        store.append([step(id="none", run_id="q"), step(id="good", score=0.9)])
        store.score_run("r", 0.8, None)
        assert self.matching(store, min_score=0.5) == ["runs", "good"]
        assert self.matching(store, min_score=0.2) == ["own", "runs", "good"]

    def test_time_range_is_half_open(self, store: StepStore) -> None:
        noon = datetime(2025, 6, 1, 12, tzinfo=UTC)
        moments = [noon + timedelta(microseconds=n) for n in (-1, 0, 1, 1_000_000)]
        store.append([step(id=str(n), created_at=moment) for n, moment in enumerate(moments)])
        assert self.matching(store, since=noon) == ["1", "2", "3"]
        assert self.matching(store, until=noon) == ["0"]
        assert self.matching(store, since=noon, until=moments[3]) == ["1", "2"]

    def test_excluded_runs(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r"), step(id="b", run_id="q"), step(id="c")])
        assert self.matching(store, exclude_run_id="r") == ["b", "c"]
        assert self.matching(store, exclude_run_id=["r", "q", "\ud800"]) == ["c"]
        assert self.matching(store, exclude_run_id=[]) == ["a", "b", "c"]

    def test_what_another_filter_matches_is_left_out(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r", status="error"), step(id="b", run_id="r")])
        store.append([step(id="c", metadata={"n": 1}), step(id="trial", scope="compile:x")])
        store.score_run("r", 0.5, None)
        assert self.matching(store, exclude={"run_id": "r", "status": "error"}) == ["b", "c"]
        assert self.matching(store, exclude=[{"status": "error"}, {"metadata": {"n": 1}}]) == ["b"]
        assert self.matching(store, exclude={"min_score": 0.4}) == ["c"]
        assert self.matching(store, exclude={"exclude": {"run_id": "r"}}) == ["a", "b"]
        assert self.matching(store, exclude={"kinds": "message"}) == ["a", "b", "c"]
        assert self.matching(store, exclude={"run_id": "\ud800"}) == ["a", "b", "c"]
        assert self.matching(store, scope="*", exclude={"scope": "compile:x"}) == ["a", "b", "c"]
        assert self.matching(store, scope="*", exclude={"run_id": "r"}) == ["c", "trial"]
        assert self.matching(store, exclude=[]) == ["a", "b", "c"]
        assert self.matching(store, exclude={}) == []

    @pytest.mark.parametrize("name", NASTY)
    def test_metadata_keys_and_values_are_only_data(self, store: StepStore, name: str) -> None:
        store.append([step(id="a", metadata={name: name}), step(id="b", metadata={"x": {name: 1}})])
        store.append([step(id="c", metadata={name: "other"}), step(id="d")])
        assert self.matching(store, run_id=name) == []
        if name == "dot.ted.key":
            with pytest.raises(InvalidFilterError, match=r"dot\.ted\.key"):
                self.matching(store, metadata={name: name})
            return
        assert self.matching(store, metadata={name: name}) == ["a"]
        assert self.matching(store, metadata={name: "unheard of"}) == []

    def test_metadata_values_equal_by_json_kind(self, store: StepStore) -> None:
        values = {"true": True, "one": 1, "real": 1.0, "text": "1", "null": None, "false": False}
        values |= {"zero": 0, "big": 2**63 + 5, "list": [1], "object": {"a": 1}}
        store.append([step(id=name, metadata={"k": value}) for name, value in values.items()])
        store.append([step(id="missing", metadata={}), step(id="none at all")])
        for value, expected in {
            True: ["true"],
            "1": ["text"],
            None: ["null"],
            2**63 + 5: ["big"],
        }.items():
            assert self.matching(store, metadata={"k": value}) == expected
        assert self.matching(store, metadata={"k": False}) == ["false"]
        assert self.matching(store, metadata={"k": 1}) == ["one", "real"]
        assert self.matching(store, metadata={"k": 1.0}) == ["one", "real"]
        assert self.matching(store, metadata={"k": 0}) == ["zero"]
        assert self.matching(store, metadata={"k": "\ud800"}) == []
        assert self.matching(store, metadata={"\ud800": 1}) == []

    def test_metadata_are_any_of_some_values(self, store: StepStore) -> None:
        values = {"en": "en", "de": "de", "one": 1, "true": True, "null": None, "list": ["en"]}
        store.append([step(id=name, metadata={"k": value}) for name, value in values.items()])
        store.append([step(id="none", metadata={"other": "en"})])
        assert self.matching(store, metadata={"k": ["en", "de", "fr"]}) == ["en", "de"]
        assert self.matching(store, metadata={"k": [1.0, None]}) == ["one", "null"]
        assert self.matching(store, metadata={"k": ["\ud800", "de"]}) == ["de"]
        assert self.matching(store, metadata={"k": ["\ud800", "\udfff"]}) == []
        assert self.matching(store, metadata={"k": ["x", "y"]}) == []
        assert self.matching(store, exclude={"metadata": {"k": ["en", True]}}) == [
            *("de", "one", "null", "list", "none"),
        ]
        many = {f"{n}": ["a", "b"] for n in range(150)}
        store.append([step(id="many", metadata=dict.fromkeys(many, "b"))])
        assert self.matching(store, metadata=many) == ["many"]
        assert self.matching(store, metadata=many | {"0": ["a", "c"]}) == []

    def test_metadata_are_compared_by_operators(self, store: StepStore) -> None:
        values = {"5": 5, "15": 15, "15.5": 15.5, "text": "15", "big": 2**63 + 5, "true": True}
        values |= {"hello": "hello", "help": "help", "nul": "a\x1ab\\u0000", "list": ["help", 5]}
        values |= {"null": None, "dict": {"help": 5}}
        store.append([step(id=name, metadata={"k": value}) for name, value in values.items()])
        store.append([step(id="none", metadata={"other": 15}), step(id="nothing")])
        for operators, expected in (
            ({"gte": 10, "lt": 20}, ["15", "15.5"]),
            ({"gt": 15}, ["15.5", "big"]),
            ({"lte": 15.0}, ["5", "15"]),
            ({"gt": "hello"}, ["help"]),
            ({"gte": "hel", "lt": "hem"}, ["hello", "help"]),
            ({"prefix": "hel"}, ["hello", "help"]),
            ({"prefix": ""}, ["text", "hello", "help", "nul"]),
            ({"prefix": "a\x1ab\\"}, ["nul"]),
            ({"contains": "el"}, ["hello", "help"]),
            ({"contains": "n"}, []),
            ({"contains": "help"}, ["help", "list"]),
            ({"contains": 5}, ["list"]),
            ({"contains": True}, []),
            ({"contains": None}, []),
            ({"contains": "help", "prefix": "hel"}, ["help"]),
            ({"gt": "\ud800"}, []),
        ):
            assert self.matching(store, metadata={"k": operators}) == expected, operators
        assert self.matching(store, metadata={"\ud800": {"gt": 1}}) == []
        less, five = {"k": {"lt": 9}}, {"k": {"gte": 5, "lte": 5}}
        assert self.matching(store, metadata=less, exclude={"metadata": five}) == []
        both = {"k": {"gte": 5}, "other": {"lt": 20}}
        assert self.matching(store, metadata=both) == []

    def test_any_of_some_filters(self, store: StepStore) -> None:
        store.append([step(id=name, user_id=name, run_id="r") for name in "abc"])
        store.append([step(id="d", metadata={"n": 1}), step(id="trial", user_id="a", scope="c:x")])
        store.score_run("r", 0.5, None)
        either = [{"user_id": "a"}, {"metadata": {"n": {"gt": 0}}}]
        assert self.matching(store, any_of=either) == ["a", "d"]
        assert self.matching(store, any_of=either, scope="*") == ["a", "d", "trial"]
        assert self.matching(store, any_of=[{"scope": "c:x"}, {"user_id": "b"}], scope="*") == [
            *("b", "trial"),
        ]
        assert self.matching(store, any_of=either, run_id="r") == ["a"]
        assert self.matching(store, any_of={"user_id": ["a", "c"]}, user_id=["b", "c"]) == ["c"]
        assert self.matching(store, any_of=[{"trust": "own"}], user_id="b") == ["b"]
        assert self.matching(store, any_of=[{"kinds": "message"}, {"user_id": "b"}]) == ["b"]
        assert self.matching(store, any_of=[{"min_score": 0.4}, {"user_id": "x"}]) == [
            "a",
            "b",
            "c",
        ]
        assert self.matching(store, exclude={"any_of": either}) == ["b", "c"]
        assert self.matching(store, any_of=[{"exclude": {"run_id": "r"}}, {"user_id": "b"}]) == [
            *("b", "d"),
        ]
        assert self.matching(store, any_of=StepFilter()) == ["a", "b", "c", "d"]

    def test_conditions_add_up(self, store: StepStore) -> None:
        store.append(
            [step(id="a", run_id="r", metadata={"x": 1, "y": 2}), step(id="b", run_id="r")]
        )
        assert self.matching(store, run_id="r", metadata={"x": 1, "y": 2}) == ["a"]
        assert self.matching(store, run_id="r", metadata={"x": 1, "y": 3}) == []

    def test_iteration_survives_deletion_on_the_way(self, store: StepStore) -> None:
        store.append([step(id=str(n)) for n in range(1200)])
        seen: list[str] = []
        for found in store.iter_steps(EVERYTHING):
            if not seen:
                store.delete(["1100"])
            seen.append(str(found.id))
        assert seen == [str(n) for n in range(1200) if n != 1100]

"""How spoken turns are found: by what stands around them, by who speaks, and how."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepHit, StepMemory
from hybridagi_steps.records.step_text import (
    SpokenTurn,
    asks_when,
    own_text,
    says_when,
    spoken_turn,
    tokens,
)

DAY = datetime(2024, 5, 8, tzinfo=UTC)


def turn(name: str, said: str, speaker: str = "assistant", **fields: Any) -> AgentStep:
    return AgentStep(
        id=name,
        step_type=AgentStepType.Action,
        inputs={"purpose": "", "arguments": {}},
        outputs={"result": said},
        metadata={"said_by": {"result": speaker}},
        created_at=DAY,
        **fields,
    )


def talk(session: str, *said: tuple[str, str], **fields: Any) -> list[AgentStep]:
    """Return the turns of a session, each made of a speaker and what is said."""
    return [
        turn(
            f"{session}{place}", text, speaker, session_id=session, run_id=session, hop=place
        ).model_copy(update=fields)
        for place, (speaker, text) in enumerate(said)
    ]


def hits(memory: StepMemory, query: str, k: int = 10, **asked: Any) -> dict[str, StepHit]:
    return {str(hit.step.id): hit for hit in memory.search(query, k, **asked)}


CAMPING = talk(
    "camp",
    ("Ann", "We put up the tent beside the lake and it rained."),
    ("Bob", "Did your sister come along with all of her dogs?"),
    ("Ann", "She stayed at home, her knee still hurts too much."),
    ("Bob", "I went to the museum last week instead of going out."),
    ("Ann", "Nothing beats a night of rain on canvas, I must say."),
    ("Bob", "You and your weather, one day it will wash you away."),
)
COOKING = talk(
    "cook",
    ("Ann", "The soup needs an hour and a lot of pepper in it."),
    ("Bob", "My bread burnt again, the oven is far too hot for it."),
)


class TestParts:
    """The parts of a turn's score."""

    def test_the_turns_around_count(self, memory: StepMemory) -> None:
        memory.add([*CAMPING, *COOKING])
        found = hits(memory, "tent at the lake")
        wide = {name: hit.parts["wide"] for name, hit in found.items()}
        assert min(wide[name] for name in ("camp0", "camp1", "camp2")) > 0.5
        assert wide.get("camp3", 0) == wide.get("cook0", 0) == 0
        assert "words of the turns around it" in found["camp2"].why

    def test_the_session_counts_as_one_text(self, memory: StepMemory) -> None:
        memory.add([*CAMPING, *COOKING])
        session = {name: h.parts["session"] for name, h in hits(memory, "rain and knee").items()}
        assert {value for name, value in session.items() if name.startswith("camp")} == {1.0}
        assert {value for name, value in session.items() if name.startswith("cook")} <= {0.0}

    def test_a_query_that_names_the_speaker_prefers_that_speaker(self, memory: StepMemory) -> None:
        memory.add([*CAMPING, *COOKING])
        said = {name: h.parts["speaker"] for name, h in hits(memory, "what did Bob say?").items()}
        assert said["camp1"] == 1 > said.get("camp0", 0)
        assert "said by whom the query names" in hits(memory, "Bob's museum")["camp3"].why
        unnamed = hits(memory, "museum")
        assert {hit.parts["speaker"] for hit in unnamed.values()} == {0}
        assert unnamed["camp3"].score > 0.5, "a part that nobody can have takes nothing away"

    def test_a_role_is_no_speaker(self, memory: StepMemory) -> None:
        memory.add(talk("s", ("user", "the tent is wet"), ("assistant", "then dry the tent")))
        found = hits(memory, "what did the assistant say of the tent?")
        assert {hit.parts["speaker"] for hit in found.values()} == {0}


class TestPriors:
    """How a turn speaks."""

    def score(self, memory: StepMemory, query: str, *said: str) -> list[float]:
        memory.add([turn(str(n), text, "Ann", session_id=f"s{n}") for n, text in enumerate(said)])
        found = hits(memory, query)
        return [found[str(n)].score for n in range(len(said))]

    def test_a_question_loses_a_tenth(self, memory: StepMemory) -> None:
        said = (
            "the old boat of my uncle lies in the harbour of Bergen all winter long, it leaks a bit"
        )
        told, asked = self.score(memory, "boat harbour", said + "!", said + " ?")
        assert asked == pytest.approx(0.9 * told, rel=0.02)

    def test_a_short_turn_loses(self, memory: StepMemory) -> None:
        short, long = self.score(
            memory, "harbour", "harbour", "of all that there was, we were just by this harbour"
        )
        assert short < long

    def test_when_asked_when_dated_turns_come_first(self, memory: StepMemory) -> None:
        memory.add(
            [
                turn("no", "I saw the museum of the city and liked it", "Ann", session_id="a"),
                turn("yes", "I saw the museum last week and hated it", "Ann", session_id="b"),
            ]
        )
        found = hits(memory, "When did Ann see the museum?")
        assert found["yes"].score > found["no"].score
        plain = hits(memory, "Ann at the museum")
        assert found["no"].score / found["yes"].score < plain["no"].score / plain["yes"].score

    @pytest.mark.parametrize(
        ("text", "dated"),
        [
            ("we met yesterday", True),
            ("in May we fly", True),
            ("back in 1999", True),
            ("three days ago", True),
            ("I may come", False),
            ("last but not least", False),
            ("room 2024b", False),
            ("gestern waren wir dort", False),
        ],
    )
    def test_time_expressions_are_english(self, text: str, dated: bool) -> None:
        assert says_when(text) is dated

    @pytest.mark.parametrize(
        ("query", "asks"),
        [
            ("When did she leave?", True),
            ("In what year was that?", True),
            ("How long have they been there", True),
            ("what did she do when it rained?", False),
            ("whenever", False),
        ],
    )
    def test_questions_that_ask_for_a_time(self, query: str, asks: bool) -> None:
        assert asks_when(query) is asks


class TestMixed:
    """Turns and steps of agents in one memory, kept apart and compared."""

    def test_steps_have_no_parts_of_turns_and_turns_none_of_steps(self, memory: StepMemory) -> None:
        tool = AgentStep(
            id="tool",
            step_type=AgentStepType.Action,
            inputs={"purpose": "rain at the lake", "tool": "weather", "arguments": {}},
            outputs={"result": "rain"},
        )
        memory.add([*CAMPING, tool])
        found = hits(memory, "rain at the lake", aim="tool")
        assert {"wide", "session", "speaker"}.isdisjoint(found["tool"].parts)
        assert "tool_words" in found["tool"].parts
        assert "tool_words" not in found["camp0"].parts
        assert all(0 < hit.score <= 1 for hit in found.values())

    def test_nothing_of_another_user_counts(self) -> None:
        """Neither the turns around nor the session: one asks, another answers in the same one."""
        mine = [step.model_copy(update={"user_id": "ann"}) for step in CAMPING[::2]]
        theirs = [step.model_copy(update={"user_id": "bob"}) for step in CAMPING[1::2]]
        found: list[dict[str, dict[str, float]]] = []
        for stored in (mine, [*mine, *theirs]):
            with StepMemory(":memory:", embedder="hashing") as memory:
                memory.add(stored)
                asked = hits(memory, "museum rain knee", where={"user_id": "ann"})
                found.append({name: hit.parts for name, hit in asked.items()})
        alone, beside = found
        for name in alone.keys() & beside.keys():
            assert alone[name]["session"] == beside[name]["session"] == 1
        lone = hits_of(theirs, mine, "museum", {"user_id": "ann"})
        assert lone == {}, "a word of the other's turns is found by nobody else"

    def test_a_memory_opened_again_says_the_same(self, tmp_path: Path) -> None:
        """Facts about turns live in the cache file, and only while their turns do."""
        many = [s for n in range(400) for s in talk(f"s{n}-", *[("Zoe", f"talk {n}")] * 6)]
        with StepMemory(tmp_path / "m.db", embedder="hashing") as memory:
            memory.add([*CAMPING, *many])
            memory.flush()
            before = hits(memory, "did Ann sleep in the tent?")
        [cache] = tmp_path.glob("m.db.????????.index")
        assert b"zoe" in cache.read_bytes()
        with StepMemory(tmp_path / "m.db", embedder="hashing") as memory:
            assert hits(memory, "did Ann sleep in the tent?") == before
            memory.delete([step.id for step in many[:-1]])
            memory.delete(many[-1].id)
            memory.add(many_tools())
            memory.flush()
            assert hits(memory, "tent of Ann")["camp0"].parts["speaker"] == 1
        for cache in tmp_path.glob("*.index"):
            assert b"zoe" not in cache.read_bytes()


def many_tools() -> list[AgentStep]:
    return [
        AgentStep(
            id=f"t{number}",
            step_type=AgentStepType.Action,
            inputs={"purpose": f"count {number}", "tool": "count", "arguments": {}},
            outputs={"result": str(number)},
        )
        for number in range(2_100)
    ]


def hits_of(
    theirs: list[AgentStep], mine: list[AgentStep], query: str, where: dict[str, str]
) -> dict[str, StepHit]:
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([*mine, *theirs])
        return hits(memory, query, where=where, mode="lexical")


def test_what_counts_of_a_turn_survives_its_line() -> None:
    made = spoken_turn(turn("a", "Were you there last May, or not?", "Ann Lee", session_id="s"))
    assert made is not None
    assert (made.length, made.asks, made.dated, made.speaker) == (7, True, True, "ann lee")
    assert not made.exchange
    assert SpokenTurn.of_line(made.line()) == made
    plain = made._replace(asks=False, dated=False, speaker="", session=-(2**63), exchange=True)
    assert SpokenTurn.of_line(plain.line()) == plain


def test_a_step_with_a_tool_is_no_turn() -> None:
    assert spoken_turn(many_tools()[0]) is None
    decision = AgentStep(step_type=AgentStepType.Decision, outputs={"choice": "yes"})
    assert spoken_turn(decision) is None


def test_the_wide_window_is_bm25_over_five_turns(memory: StepMemory) -> None:
    """One word, five turns, the formula written out; one turn alone in another session."""
    said = ["alpha one", "beta two", "gamma three", "alpha four and five", "delta six"]
    steps = [*talk("s", *[("Ann", text) for text in said]), *talk("z", ("Ann", "alpha omega"))]
    memory.add(steps)
    own = [tokens(own_text(step)) for step in steps]
    around = {f"s{n}": own[max(0, n - 2) : min(5, n + 3)] for n in range(5)} | {"z0": own[5:]}
    words = {name: [word for turn in turns for word in turn] for name, turns in around.items()}
    average = sum(map(len, words.values())) / len(words)
    raw: dict[str, float] = {}
    for name, held in words.items():
        count = held.count("alpha")
        raw[name] = count * 2.5 / (count + 1.5 * (0.25 + 0.75 * len(held) / average))
    expected = {name: value / max(raw.values()) for name, value in raw.items()}
    wide = {name: hit.parts["wide"] for name, hit in hits(memory, "alpha").items()}
    assert wide == pytest.approx(expected, abs=1e-3)


def test_a_question_with_its_answer_is_as_wide_as_two_turns(memory: StepMemory) -> None:
    """Its wide window reaches one link to either side, that of a turn alone two."""
    for kind, purpose in (("pair", "and then?"), ("lone", "")):
        steps = talk(kind, *[("Ann", f"{kind} {word}") for word in ("tent", "mud", "oar", "fog")])
        for step in steps:
            step.inputs = {"purpose": purpose, "arguments": {}}
        memory.add(steps)
    wide = {name: hit.parts["wide"] for name, hit in hits(memory, "tent").items()}
    assert wide["lone2"] > 0
    assert wide["pair1"] > 0
    assert wide.get("pair2", 0) == wide.get("lone3", 0) == 0


def test_a_purpose_may_name_who_speaks() -> None:
    plain = AgentStep(
        step_type=AgentStepType.Action, inputs={"purpose": "(8 May 2024) Ann Lee: we left."}
    )
    made = spoken_turn(plain)
    assert made is not None
    assert made.speaker == "ann lee"
    plain.inputs = {"purpose": "just talk: nothing else, or so she said"}
    made = spoken_turn(plain)
    assert made is not None
    assert made.speaker == ""

"""A text that the embedder refuses costs that text; an embedder that is down costs few calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

import hybridagi_steps as hs
from hybridagi_steps.embedders import CachingEmbedder, DspyEmbedder, HashingEmbedder
from hybridagi_steps.embedders.vectors import embed_documents
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.store_values import FloatMatrix

BAD = "a forbidden word"
TEXTS = [f"refund {n}" for n in range(200)]


class LimitedError(Exception):
    """A provider's "too many requests", as hosted models' clients raise it."""

    status_code = 429


class Hosted(HashingEmbedder):
    """Refuses whole batches for one text, as providers do, and counts calls."""

    def __init__(self) -> None:
        super().__init__(16)
        self.calls, self.down = 0, False
        self.why: Exception | None = None
        self.lenient = False

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        self.calls += 1
        if self.why is not None:
            raise self.why
        if self.down:
            raise RuntimeError("no route to host")
        if not self.lenient and any("forbidden" in text for text in texts):
            raise ValueError("400 Bad Request: input rejected by the content filter")
        return super().embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        if any("forbidden" in text for text in texts):
            raise ValueError("400 Bad Request")
        return HashingEmbedder.embed_documents(self, texts)


def act(purpose: str) -> hs.AgentStep:
    return hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": purpose})


@pytest.mark.parametrize("at", [{0}, {199}, {57}, {0, 199}, {3, 4, 90}])
def test_only_refused_texts_are_left_out(at: set[int]) -> None:
    hosted = Hosted()
    texts = [BAD + str(n) if n in at else text for n, text in enumerate(TEXTS)]
    made = embed_documents(hosted, texts)
    assert made.refused.keys() == at
    assert {n for n, good in enumerate(made.usable.tolist()) if not good} == at
    expected = HashingEmbedder(16).embed_documents(texts)
    assert all((made.vectors[n] == expected[n]).all() for n in range(200) if n not in at)
    assert hosted.calls <= 25 * len(at)


def test_one_text_alone_is_told_from_an_embedder_that_is_down() -> None:
    hosted = Hosted()
    assert embed_documents(hosted, [BAD]).refused.keys() == {0}
    hosted.down = True
    with pytest.raises(EmbedderError, match="no route to host"):
        embed_documents(hosted, [BAD])


def callable_of(hosted: Hosted) -> Embedder:
    return DspyEmbedder(hosted.embed_documents, dimension=16)


def cached(hosted: Hosted) -> Embedder:
    known = CachingEmbedder(hosted)
    known.embed_documents(TEXTS[:-1])
    hosted.calls = 0
    return known


def plain(hosted: Hosted) -> Embedder:
    return hosted


@pytest.mark.parametrize("wrapped", [plain, callable_of, cached])
@pytest.mark.parametrize(
    ("why", "most"),
    [
        (RuntimeError("no route to host"), 2),
        (ConnectionError("no route to host"), 1),
        (LimitedError("no route to host"), 1),
    ],
)
def test_an_embedder_that_is_down_is_hardly_asked_again(
    wrapped: Callable[[Hosted], Embedder], why: Exception, most: int
) -> None:
    hosted = Hosted()
    embedder = wrapped(hosted)
    hosted.why = why
    with pytest.raises(EmbedderError, match="no route to host"):
        embed_documents(embedder, TEXTS)
    assert hosted.calls <= most


def test_an_embedder_that_goes_down_in_the_middle_condemns_no_text() -> None:
    class Falling(Hosted):
        def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
            self.down = self.calls > 5
            return super().embed_documents(texts)

    falling = Falling()
    with pytest.raises(EmbedderError, match="no route to host"):
        embed_documents(falling, [*TEXTS, BAD])
    assert falling.calls < 20


def test_an_embedder_that_embeds_nothing_of_a_batch_is_at_fault_itself() -> None:
    hosted = Hosted()
    with pytest.raises(EmbedderError, match="content filter"):
        embed_documents(hosted, [BAD + str(n) for n in range(500)])
    assert hosted.calls < 40


def test_a_memory_goes_on_without_a_refused_text(caplog: pytest.LogCaptureFixture) -> None:
    hosted = Hosted()
    bad = act(BAD)
    with hs.StepMemory(":memory:", embedder=hosted) as memory:
        memory.add([act("refund 1"), bad, *(act(f"later {n}") for n in range(600))])
        assert memory.search("refund 1")[0].step.purpose == "refund 1"
        assert memory.search("later 599", mode="dense")
        assert [hit.step.id for hit in memory.search("a forbiden word", k=1)] == [bad.id]
        counts = memory.stats()
        assert (counts["embedded"], counts["text_only"], counts["pending_vectors"]) == (601, 1, 0)
        assert memory.verify() == []
        [line] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert str(bad.id) in line
        assert "content filter" in line
        asked = hosted.calls
        memory.search("refund 2")
        memory.flush()
        assert hosted.calls == asked
        with pytest.raises(EmbedderError, match="400"):
            memory.search("forbidden")

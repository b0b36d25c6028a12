"""Token counts: exact where a tokenizer is at hand, else an estimate that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps import token_counters
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.token_counters import (
    CallableCounter,
    EstimatingCounter,
    MessageCounter,
    TokenizerFileCounter,
    is_estimate,
    process_counter,
    token_counter,
)


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    """Let each test choose the counter of its process."""
    process_counter.cache_clear()
    yield
    process_counter.cache_clear()


TEXT = "The seat 14C costs 120.50 EUR; ask Élodie."


def tokenizer_file(folder: Path) -> Path:
    """A tokenizer of whole words, as Hugging Face writes one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer: Any = Tokenizer(models.WordLevel({"[UNK]": 0, "seat": 1}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def cached_vocabularies() -> str | None:
    """A folder with tiktoken's vocabularies that another package brings along, if any."""
    from importlib.util import find_spec

    found = find_spec("litellm")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    return str(folder) if folder.is_dir() else None


def test_an_estimate_says_so() -> None:
    counter = token_counter("estimate")
    assert is_estimate(counter)
    assert counter.counter_id.startswith("estimate:")
    assert not is_estimate(token_counter(len))


@given(st.text())
def test_an_estimate_is_nothing_for_nothing_only(text: str) -> None:
    count = EstimatingCounter().count(text)
    assert (count == 0) == (text == "")
    assert count <= 4 * len(text)


def test_a_function_counts_under_its_name() -> None:
    counter = CallableCounter(lambda text: len(text.split()), "words")
    assert (counter.counter_id, counter.count("a b c")) == ("callable:words", 3)


def test_a_tokenizer_file_counts_whole_texts(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path)
    counter = token_counter(path)
    assert counter.count("seat seat row seat") == 4
    assert counter.counter_id == TokenizerFileCounter(path).counter_id
    assert not is_estimate(counter)


@pytest.mark.parametrize("content", [None, b"{}"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSettingError, match="is no tokenizer file"):
        token_counter(path)


def test_what_counts_nothing_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="no token counter"):
        token_counter(5)  # pyright: ignore[reportArgumentType]


def test_tiktoken_is_used_where_its_vocabulary_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    folder = cached_vocabularies()
    if folder is None:
        pytest.skip("no vocabulary on this machine")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    counter = token_counter()
    assert counter.counter_id.startswith("tiktoken:")
    encoding = tiktoken.get_encoding(counter.counter_id.partition(":")[2])
    assert counter.count(TEXT) == len(encoding.encode(TEXT))
    assert counter.count("<|endoftext|>") > 1
    with pytest.raises(InvalidSettingError, match="cannot load"):
        token_counter("tiktoken:nonsense")


def test_nothing_is_downloaded_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(token_counters, "_vocabulary_folders", lambda: [tmp_path])
    assert token_counter().counter_id == EstimatingCounter.counter_id


_COUNTED_BY_DEFAULT = """
import os, sys
from hybridagi_steps.token_counters import token_counter
counter = token_counter()
assert "tiktoken" not in sys.modules, "it is loaded when something is counted"
print(counter.counter_id, counter.count("The seat 14C costs 120.50 EUR; ask Élodie."))
assert "litellm" not in sys.modules and "TIKTOKEN_CACHE_DIR" not in os.environ
"""


def test_what_litellm_ships_counts_without_litellm_and_without_a_network(tmp_path: Path) -> None:
    if cached_vocabularies() is None:
        pytest.skip("this litellm ships no vocabulary")
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "TMPDIR": str(tmp_path)}
    environment = {**os.environ, **offline}
    environment.pop("TIKTOKEN_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED_BY_DEFAULT],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.split() == ["tiktoken:cl100k_base", "17"]


def test_the_estimate_is_from_above_for_each_thousand_tokens(
    real_steps: list[AgentStep],
) -> None:
    """As many as a budget may hold, of what the runs of one source say."""
    exact, estimate = token_counter("auto"), token_counter("estimate")
    if is_estimate(exact):
        pytest.skip("no vocabulary on this machine")
    counted = estimated = chunks = 0
    for step in real_steps:
        for text in filter(None, (step.purpose, str(step.arguments), str(step.result))):
            counted, estimated = counted + exact.count(text), estimated + estimate.count(text)
        if counted >= 1_000:
            assert estimated >= 0.99 * counted, step.run_id
            counted, estimated, chunks = 0, 0, chunks + 1
    assert chunks >= 50


def test_one_counter_counts_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = token_counter()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", cached_vocabularies() or "/nowhere")
    assert token_counter() is before


def test_the_estimate_is_near_for_real_messages(
    real_steps: list[AgentStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tiktoken")
    folder = cached_vocabularies()
    if folder is None:
        pytest.skip("no vocabulary on this machine")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    exact, estimate = token_counter("tiktoken"), token_counter("estimate")
    texts = [str(step.result) for step in real_steps if step.result]
    ratio = sum(map(estimate.count, texts)) / sum(map(exact.count, texts))
    assert 1.0 < ratio < 1.35


UUIDS = (
    "21636369-8b52-9b4a-97b7-50923ceb3ffd 795b929e-9a9a-80fd-ea7b-5bf55eb561a4 "
    "9b08923d-10c6-7fd9-94b2-b8fda02f34a6 781f9c58-d664-5fa9-e8a8-529f035efa25 "
    "31162427-3bfd-1d33-8d00-38ec42650644 8a7d43b5-7863-3074-b797-0386fee29476 "
    "65aa9c82-79f2-48b0-8cb4-a0d7d6225675 3b5f3d86-268e-cc45-dc6b-f1e1a399f82a "
    "ed038db4-de38-3784-26d0-b944a2863a7f 03e0a813-bdc2-ae99-63d2-e49085ef3430 "
    "28ce6f24-1064-5d51-c6f8-da3eabe19f58 0af438d2-9752-4d6a-f51e-8722c21b6092"
)
BASE64 = (
    "n+AfTdkXs8fOYvAHQ4TV0mAxk91MeflElhUGeReBQZgg2AS4T2KP6zjg+eDuUDpjiTDRtnCAwc"
    "leH83r25pLbVNSHGWzdma6cVsIzQRasJNyr9JxCtnO9oicgu+fmFci3Wf94EOykl0cxPIY390v"
    "CfvaziL0rbB+3HSMN74OC0LItCn34uQKrMpNqG9Dv2rHoQVsoFsQ8NqPDRBNi2PQaxCt2oGlwV"
    "7VhSHIYnsn85IFRdVZ2fq6iLRqx5Vb5FZolIaRlQSufTtwxHnnSzs2VpNhlq5HVW3qCWHP7TFJ"
    "VgdQET3ba3uZR1R/sf0J+BabLJXYqweTELKW5cApXn3Yssq9UtxOUI5TQS/y9jIssYrmJ5rnr6"
    "5rko4HsZFAtqQaT7a8tteUz6d5SQw2"
)
DENSE: dict[str, tuple[str, int]] = {
    "UUIDs": (UUIDS, 284),
    "emoji": ("😀🎉🚀❤️👍🏽" * 10, 170),
    "base64": (BASE64, 290),
}
"""Texts that few words hold, and their tokens in cl100k_base."""


@pytest.mark.parametrize("kind", DENSE)
def test_ids_hashes_and_emoji_are_not_underestimated(kind: str) -> None:
    text, exact = DENSE[kind]
    assert 0.9 * exact <= EstimatingCounter().count(text) <= 1.35 * exact


@pytest.mark.parametrize(
    ("first", "last"), [("\u2600", "\u27bf"), ("\ufe0f", "\ufe0f"), ("\U00010000", "\U0010ffff")]
)
def test_what_is_no_emoji_costs_less(first: str, last: str) -> None:
    count, before = EstimatingCounter().count, chr(ord(first) - 1)
    assert count(first * 100) == count(last * 100) == 50 * len(first.encode()) + 70
    for plain in (before, chr(ord(last) + 1)) if last < "\U0010ffff" else before:
        assert count(plain * 100) == 50 * len(plain.encode())


class _Odd:
    counter_id = "odd"

    def __init__(self, count: Any) -> None:
        self._count = count

    def count(self, text: str) -> Any:
        del text
        return self._count


@pytest.mark.parametrize("count", [None, -1, 1.5, "3"])
def test_a_counter_must_return_a_number_of_tokens(count: Any) -> None:
    counters: list[Any] = [_Odd(count), lambda _text: count]  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    for counter in counters:
        with pytest.raises(InvalidSettingError, match="it returns a whole number"):
            MessageCounter(token_counter(counter)).text("hello")


class TestMessageCounter:
    def test_everything_that_is_sent_counts(self) -> None:
        counter = MessageCounter(CallableCounter(lambda text: len(text.split()), "words"))
        function = {"name": "look", "arguments": "a b c"}
        assert counter.message({"role": "user", "content": "one two"}) == 3 + 2
        assert counter.message({"role": "assistant", "content": None}) == 3
        call = {"role": "assistant", "content": "so", "tool_calls": [{"function": function}]}
        assert counter.message(call) == 3 + 1 + 4 + 1 + 3
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": "one two"},
            {"type": "image_url", "image_url": {}},
        ]
        assert counter.message({"role": "user", "content": parts}) == 3 + 2 + 1_000

    def test_a_text_is_counted_once(self) -> None:
        asked: list[str] = []

        def slow(text: str) -> int:
            asked.append(text)
            return 1

        counter = MessageCounter(CallableCounter(slow))
        repeated: Callable[[], int] = lambda: counter.text("again")  # noqa: E731
        assert repeated() + repeated() == 2
        assert asked == ["again"]

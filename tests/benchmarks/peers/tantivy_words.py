"""tantivy: an index of words in files that are mapped into memory.

Words are split at spaces and kept with their counts, without positions, which is less than ours
keeps; rows are a fast field, from which those of the best are read. One thread writes, and what it
has written is merged before anything is asked.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tantivy import Document, Index, Occur, Query, SchemaBuilder, TextAnalyzerBuilder, Tokenizer

from tests.benchmarks.peers import WordDocument

_HEAP_BYTES = 200_000_000


class TantivyWords:
    """One index in a folder."""

    def __init__(self, folder: Path) -> None:
        builder = SchemaBuilder()
        builder.add_text_field("words", tokenizer_name="spaces", index_option="freq")
        builder.add_unsigned_field("row", fast=True)
        self._schema = builder.build()
        self._index = Index(self._schema, str(folder))
        spaces = TextAnalyzerBuilder(Tokenizer.whitespace()).build()
        self._index.register_tokenizer("spaces", spaces)
        self._searcher: Any = self._index.searcher()

    @property
    def settings(self) -> str:
        """Say in how many parts it is."""
        return f"{self._searcher.num_segments} segments, mapped; counts without positions, k1 1.2"

    def add(self, documents: Sequence[WordDocument]) -> None:
        """Write documents, and wait until their segments are merged."""
        writer = self._index.writer(_HEAP_BYTES, 1)
        for row, words in documents:
            document = Document()
            document.add_text("words", " ".join(words))
            document.add_unsigned("row", row)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    def search(self, words: Sequence[str], k: int) -> list[int]:
        """Return the best rows."""
        terms = [
            (Occur.Should, Query.term_query(self._schema, "words", word))
            for word in dict.fromkeys(words)
        ]
        hits = self._searcher.search(Query.boolean_query(terms), k, count=False).hits
        return self._searcher.fast_field_values("row", [address for _, address in hits])

    def close(self) -> None:
        """Nothing to close: files are unmapped with the index."""

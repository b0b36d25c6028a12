"""How many real step texts a second each embedder at hand turns into vectors.

The texts are the own texts of the shipped steps, each once, in one call as a drain makes it, and
then one query alone. Embedders take turns; one that is not installed is a row that says so. Which
of them finds more is asked in `quality`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from hybridagi_steps.embedders.resolution import resolve_embedder
from hybridagi_steps.embedders.sentence_transformer import minilm_folder
from hybridagi_steps.errors import EmbedderError, MissingExtraError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.step_text import own_text
from tests.benchmarks.conditions import conditions
from tests.benchmarks.peers import NOT_INSTALLED
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import interleaved, timed, typical

EMBEDDERS = "hashing,wordllama,sentence-transformers"


def report(json_output: bool = False, **options: Any) -> None:
    """Print how fast texts are embedded; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(rounds: int = 5, embedders: str = EMBEDDERS, texts: int = 848) -> dict[str, Any]:
    """Return texts per second, and milliseconds of a query and of loading, for each embedder.

    Args:
        rounds: How often each embedder is measured.
        embedders: Their names, with commas between them; `sentence-transformers` alone means
            the model at hand, with a model after a colon one of a hub.
        texts: Step texts embedded at once; there are 848 in the package.
    """
    said = [own_text(step) for step in shipped_steps()[:texts]]
    found: dict[str, Any] = {}
    models: dict[str, Embedder] = {}
    for name in embedders.split(","):
        if reason := _not_at_hand(name):
            found[name] = {"missing": reason}
            continue
        try:
            load = timed(lambda name=name: models.update({name: resolve_embedder(name)}))
            first = timed(_embedding(models[name], said[:1]))
        except (EmbedderError, MissingExtraError) as error:
            found[name] = {"missing": str(error)}
            continue
        found[name] = {"first_ms": (load.wall + first.wall) * 1e3}
    at_hand = {name: model for name, model in models.items() if "missing" not in found[name]}
    many = {name: _embedding(model, said) for name, model in at_hand.items()}
    one = {name: _asking(model, said[0]) for name, model in at_hand.items()}
    batches, queries = interleaved(many, rounds), interleaved(one, max(20, rounds))
    for name, model in at_hand.items():
        per_text = typical(batches[name], "wall", per=len(said))
        found[name] |= {
            "dimension": model.dimension,
            "texts_per_second": 1e6 / per_text,
            "cpu_us_per_text": typical(batches[name], "cpu", per=len(said)),
            "query_ms": typical(queries[name], "wall") / 1e3,
        }
    options = conditions(rounds=rounds, embedders=embedders, texts=texts)
    characters = sum(map(len, said)) / len(said)
    return {**options, "texts": len(said), "characters": characters, "embedders": found}


def _not_at_hand(name: str) -> str | None:
    """Tell why an embedder cannot be had here, None if it can; nothing is fetched for it."""
    if name != "sentence-transformers":
        return None
    if find_spec("sentence_transformers") is None:
        return NOT_INSTALLED
    return "its weights are not at hand" if minilm_folder() is None else None


def _embedding(model: Embedder, texts: Sequence[str]) -> Callable[[], object]:
    return lambda: model.embed_documents(texts)


def _asking(model: Embedder, text: str) -> Callable[[], object]:
    return lambda: model.embed_queries([text])


def _tables(result: dict[str, Any]) -> list[Table]:
    title = f"embedding {result['texts']} real step texts of {result['characters']:.0f} characters"
    columns = ["", "dimension", "texts/s", "CPU µs/text", "one query, ms", "load and first, ms"]
    return [Table(title, columns, [_row(*item) for item in result["embedders"].items()])]


def _row(name: str, found: dict[str, Any]) -> list[str]:
    if "missing" in found:
        return [name, str(found["missing"]), *[""] * 4]
    return [
        name,
        str(found["dimension"]),
        number(found["texts_per_second"], 0),
        number(found["cpu_us_per_text"], 1),
        number(found["query_ms"], 2),
        number(found["first_ms"], 0),
    ]

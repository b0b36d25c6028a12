"""A file of arrays that is either exactly what was written, or not there.

Whatever reads damaged index bytes answers wrongly or crashes, so nothing is handed out before its
checksum has been compared. Opening reads the header alone; an array is read when it is asked for,
and of a `PagedArray` only the pages that hold what is asked for, once, into memory of this process:
what happens to the file afterwards (a copied backup, say) changes no answer, as a mapping would.
A cache can be rebuilt: loading never raises, it says what is wrong in the log and returns None;
what is found damaged later raises `DamagedCacheError`. Saving never raises for want of space or
permission. What the arrays mean is for the caller to know. Nothing is unpickled.

    magic 8 | version u32 | header length u32 | file length u64 | SHA-256 of all but itself before
    the padding, 32 | header JSON | CRC-32 of each page, u32 | padding | arrays, each from a
    multiple of 64
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import repeat
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, NamedTuple, TypeVar
from weakref import finalize
from zlib import crc32

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.outside_files import UNFINISHED, remove_abandoned
from hybridagi_steps.records.store_values import distinct

Array = npt.NDArray[Any]
_Read = TypeVar("_Read")

_MAGIC = b"HGSTEPS\x01"
_VERSION = 3
_HEAD = struct.Struct("<8sIIQ32s")
_ALIGNMENT = 64
_KINDS = frozenset("biufc")
_PAGES_AT_ONCE, _READ_AT_ONCE = 128, 2**20
"""Pages that are asked for, and bytes of a whole array, that stand in memory twice."""
_PAGE_BYTES = {1: 32_768, 2: 2_048}
"""Most bytes of a page that holds more than one row, by dimensions of its array: of matrices single
rows are asked for. Of so many a CRC-32 finds any two flipped bits, and any run of 32."""
_ROOM = 2
"""A paged array can grow by one in so many rows before it has to move."""
_DAMAGED_PAGE = "the checksum of a page does not fit: it is damaged"
_log = logging.getLogger("hybridagi_steps")
_NOT_WRITTEN = "the cache %s was not written: %s"


class DamagedCacheError(Exception):
    """Why a cache file is not used; never leaves this package."""


def save_cache(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    arrays: Mapping[str, Array | bytes | Patched],
) -> bool:
    """Write a cache file in one step: readers see the old file or the new one, whole.

    Args:
        path: Where; the folder must exist. The file is readable by its owner only.
        header: Small JSON values, to be compared when loading.
        arrays: Numbers or booleans of any shape. Bytes come back as a uint8 array. Of what is
            `Patched` the rest is copied with the checksums it has.

    Returns:
        Whether it was written; if not, a warning says why and an older file is left as it was.
    """
    target = Path(path)
    plain = {name: _saved(name, values) for name, values in arrays.items()}
    try:
        remove_abandoned(target)
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", suffix=UNFINISHED, delete=False
        ) as file:
            temporary = Path(file.name)
            try:
                _write(file.file, header, plain)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                with suppress(OSError):  # the first error is the one to tell
                    temporary.unlink()
                raise
    except FileNotFoundError as error:  # a purge erases what others have not finished
        erased = target.parent.exists()
        _log.log(logging.DEBUG if erased else logging.WARNING, _NOT_WRITTEN, target, error)
        return False
    except OSError as error:
        _log.warning(_NOT_WRITTEN, target, error)
        return False
    return True


def load_cache(path: str | os.PathLike[str], expect: Mapping[str, Any]) -> CacheFile | None:
    """Open a cache file if its header is whole and contains what is expected.

    None if it is missing, stale, foreign or damaged; the log says which.
    """
    return _unless_unusable(path, partial(CacheFile, Path(path), expect))


class CacheHeader:
    """The header of a cache file; read again only when the file is another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[object, dict[str, Any] | None] = (None, None)

    def read(self, expect: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what was saved beside the arrays; None where `load_cache` would open nothing."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        state = stat.st_ino, stat.st_mtime_ns, stat.st_size, *expect.items()
        if self._known[0] != state:
            self._known = state, _unless_unusable(self._path, partial(self._read, expect))
        return self._known[1]

    def _read(self, expect: Mapping[str, Any]) -> dict[str, Any]:
        head = _read_head(_OpenFile(self._path))
        _refuse_stale(head.header, expect)
        return head.header


def _unless_unusable(path: str | os.PathLike[str], read: Callable[[], _Read]) -> _Read | None:
    try:
        return read()
    except FileNotFoundError:
        _log.debug("no cache at %s", path)
    except DamagedCacheError as reason:
        _log.info("the cache %s is not used: %s", path, reason)
    except (OSError, MemoryError) as error:
        _log.warning("the cache %s cannot be read: %s", path, error)
    return None


class CacheFile(Mapping[str, Array]):
    """The arrays of a cache file, each read and checked anew when it is asked for.

    `header` was saved beside them. The file is open as long as this, a part or a paged array.
    """

    def __init__(self, path: Path, expect: Mapping[str, Any]) -> None:
        """Open a file; raise DamagedCacheError if it is no whole cache, or not the expected one."""
        self._file = _OpenFile(path)
        head = _read_head(self._file)
        self.header, self._entries = head.header, _entries(head)
        _refuse_stale(self.header, expect)

    def __getitem__(self, name: str) -> Array:
        """Return an array; raise DamagedCacheError if it is not what was written."""
        entry = self._entries[name]
        values = np.empty(entry.shape, entry.dtype)
        entry.read(self._file, _bytes(values), 0)
        values.flags.writeable = False
        return values

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # a Mapping's own would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def part(self, prefix: str) -> CacheFile:
        """Return the arrays whose names begin with a prefix, named by what follows."""
        found = object.__new__(CacheFile)
        found._file, found.header = self._file, self.header
        found._entries = {
            name.removeprefix(prefix): entry
            for name, entry in self._entries.items()
            if name.startswith(prefix)
        }
        return found

    def paged(self, name: str, made: Callable[[Array], Array] | None = None) -> PagedArray:
        """Return an array of which nothing is read yet; `made` makes float32 of its rows."""
        return PagedArray(self._file, self._entries[name], made)


class PagedArray:
    """An array of a file, read page by page as its rows are asked for, with room to grow behind it.

    Its memory is private to this process, and no more than what has been read.
    """

    def __init__(
        self, file: _OpenFile, entry: _Entry, made: Callable[[Array], Array] | None
    ) -> None:
        self._file, self._entry = file, entry
        self._missing = np.ones(len(entry.checksums), np.bool_)
        self._left = len(entry.checksums)
        count, *rest = entry.shape
        self._made = None if entry.dtype == np.float32 else made
        kind = entry.dtype if self._made is None else np.dtype(np.float32)
        self.room: Array = untouched((count + count // _ROOM, *rest), kind)
        """Rows of the file, and behind them those that nobody has written yet."""
        self._unmade = np.zeros(0 if self._made is None else count, np.bool_)
        """Rows that stand at the beginning of their place as they are in the file."""

    def __len__(self) -> int:
        return self._entry.shape[0]  # rows of the file

    @property
    def dtype(self) -> np.dtype[Any]:
        """The kind of what stands in the file."""
        return self._entry.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what stands in the file."""
        return self._entry.shape

    @property
    def source(self) -> tuple[_OpenFile, _Entry]:
        """Where it stands."""
        return self._file, self._entry

    def copy_to(self, values: Array) -> int:
        """Write what stands in the file to the first rows of an array; return how many."""
        self._entry.read(self._file, _bytes(values[: len(self)]), 0)
        return len(self)

    def need(self, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> None:
        """Read what is not there yet of some spans of rows; rows behind the file's are skipped.

        What is not what was written raises DamagedCacheError.
        """
        stops = np.minimum(stops, len(self))
        if self._left:
            per_page = self._entry.rows_per_page
            first: npt.NDArray[np.int64] = starts // per_page
            lengths = np.where(stops > starts, -(-stops // per_page) - first, 0)
            behind = np.cumsum(lengths)
            within = np.arange(len(starts) and int(behind[-1]))
            pages: npt.NDArray[np.int64] = np.repeat(first - behind + lengths, lengths) + within
            self._read_missing(pages)
        if self._made is not None:
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                self._make(self._unmade[start:stop].nonzero()[0] + start)

    def need_rows(self, rows: npt.NDArray[Any]) -> None:
        """Read what is not there yet of single rows, as `need` does of spans."""
        if rows.max(initial=0) >= len(self):
            rows = rows[rows < len(self)]
        if self._left:
            self._read_missing(rows // self._entry.rows_per_page)
        if self._made is not None:
            self._make(rows[self._unmade[rows]])

    def _read_missing(self, pages: npt.NDArray[np.int64]) -> None:
        pages = pages[self._missing[pages]]
        if len(pages):
            pages = distinct(pages)
            for start in range(0, len(pages), _PAGES_AT_ONCE):
                self._read(pages[start : start + _PAGES_AT_ONCE])

    def _read(self, pages: npt.NDArray[np.int64]) -> None:
        """Read ascending pages: neighbours at once, in a filter's case thousands of single ones."""
        entry, per_page = self._entry, self._entry.rows_per_page
        if self._made is None:
            breaks = (np.diff(pages) != 1).nonzero()[0] + 1
            firsts, lasts = pages[np.append(0, breaks)], pages[np.append(breaks, len(pages)) - 1]
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                part = self.room[first * per_page : min((last + 1) * per_page, len(self))]
                entry.read(self._file, _bytes(part), first)
        else:
            read = np.frombuffer(entry.several(self._file, pages.tolist()), entry.dtype)
            stored = read.reshape(-1, *entry.shape[1:])
            rows = (pages[:, None] * per_page + np.arange(per_page)).ravel()
            rows = rows[: len(stored)]  # the last page may be short
            self._as_stored[rows], self._unmade[rows] = stored, True
        self._missing[pages] = False
        self._left -= len(pages)

    @property
    def _as_stored(self) -> Array:
        """What stands at the beginning of each place, as the file has it."""
        return self.room.view(self._entry.dtype)[:, : self._entry.shape[1]]

    def _make(self, rows: npt.NDArray[Any]) -> None:
        """Make of some rows what is asked for; to make all of their pages takes as long again."""
        made = self._made
        for start in range(0, len(rows) if made else 0, _PAGES_AT_ONCE):
            some = rows[start : start + _PAGES_AT_ONCE]
            some = some[self._unmade[some]]  # one that is asked for twice is made once
            if made and len(some):
                self.room[some] = made(self._as_stored[some])
                self._unmade[some] = False


class Patched:
    """A paged array as it is to be saved: as its file has it, but for some rows, and with more.

    Pages that nothing was changed of are copied, and not compared: their checksums come along.
    """

    def __init__(
        self, filed: PagedArray, changed: npt.NDArray[Any], value: object, more: Array
    ) -> None:
        """Take a value for some of the file's rows, ascending; rows follow that stand behind."""
        self._file, self._entry = filed.source
        entry, per_page = self._entry, self._entry.rows_per_page
        self.dtype, self.shape = entry.dtype, (len(filed) + len(more), *entry.shape[1:])
        self._pages: dict[int, bytes] = {}
        full, of = len(filed) // per_page, changed // per_page
        last = [full] if len(more) and len(filed) % per_page else []
        for page in distinct(np.append(of, last).astype(np.int64)).tolist():
            read = np.frombuffer(entry.checked(self._file, page, page + 1), entry.dtype)
            rows = read.reshape(-1, *entry.shape[1:]).copy()
            rows[changed[of == page] - page * per_page] = value
            self._pages[page] = rows.tobytes()
        behind = self._pages.get(full, b"") + np.ascontiguousarray(more, entry.dtype).tobytes()
        for start in range(0, len(behind), entry.page_bytes):
            page = full + start // entry.page_bytes
            self._pages[page] = behind[start : start + entry.page_bytes]

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return self.dtype.itemsize * prod(self.shape)

    def checksums(self) -> list[int]:
        """Return those of all its pages."""
        known = {page: crc32(data) for page, data in self._pages.items()}
        kept = enumerate(self._entry.checksums)
        return [known.pop(page, crc) for page, crc in kept] + [
            known[page] for page in sorted(known)
        ]

    def parts(self) -> Iterator[bytes]:
        """Yield what it consists of, one behind the other."""
        size, at = self._entry.page_bytes, 0
        for page in [*sorted(self._pages), -(-self.nbytes // size)]:
            stop = min(page * size, self._entry.size)
            for start in range(at * size, stop, _READ_AT_ONCE):
                count = min(_READ_AT_ONCE, stop - start)
                yield self._file.read(count, self._entry.start + start)
            yield self._pages.get(page, b"")
            at = page + 1


def unread(
    arrays: Mapping[str, Array], name: str, made: Callable[[Array], Array] | None = None
) -> tuple[Array, PagedArray | None]:
    """Return an array, of a file one of which nothing is read yet, and what reads that."""
    if isinstance(arrays, CacheFile):
        paged = arrays.paged(name, made)
        return paged.room, paged
    return arrays[name], None


def _saved(name: str, values: Array | bytes | Patched) -> Array | Patched:
    if isinstance(values, Patched):
        return values
    array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"array {name!r} holds {array.dtype}, only numbers can be cached.")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _padding(length: int) -> int:
    return -length % _ALIGNMENT


def _seek_and_read(descriptor: int, count: int, start: int) -> bytes:
    with _seeking:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, count)


# Windows has no pread; nor has it forks, which share where a file is read.
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
_seeking = ForkSafeLock()


class _OpenFile:
    """A file that is open as long as somebody reads from it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        finalize(self, os.close, self.descriptor)

    def read_each(self, count: int, starts: Sequence[int]) -> list[bytes]:
        """Return up to so many bytes from each of some places on."""
        try:
            return [*map(_pread, repeat(self.descriptor), repeat(count), starts)]
        except OSError as error:
            raise DamagedCacheError(f"it cannot be read: {error}") from error

    def read(self, count: int, start: int) -> bytes:
        """Return so many bytes; a process that was forked reads by itself."""
        try:
            data = _pread(self.descriptor, count, start)
            while len(data) < count:
                if not (piece := _pread(self.descriptor, count - len(data), start + len(data))):
                    raise DamagedCacheError("it became shorter")
                data += piece
        except OSError as error:
            raise DamagedCacheError(f"it cannot be read: {error}") from error
        return data


class _Head(NamedTuple):
    """What stands before the arrays of a file."""

    header: dict[str, Any]
    arrays: list[dict[str, Any]]
    """Name, kind, shape and number of pages of each."""
    table: bytes
    """The checksums of all pages."""
    start: int
    """Where these begin."""
    length: int
    """Of the file."""


class _Entry(NamedTuple):
    """Where an array stands in a file, and the checksums of its pages."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    size: int
    """In bytes."""
    rows_per_page: int
    page_bytes: int
    checksums: list[int]

    def read(self, file: _OpenFile, into: memoryview, first: int) -> None:
        """Fill a buffer with the pages from `first` on."""
        size, pages = self.page_bytes, -(-len(into) // self.page_bytes)
        for page in range(0, pages, at_once := max(1, _READ_AT_ONCE // size)):
            data = self.checked(file, first + page, first + min(page + at_once, pages))
            into[page * size : page * size + len(data)] = data

    def several(self, file: _OpenFile, pages: Sequence[int]) -> bytes:
        """Return what stands in ascending pages, compared, one behind the other."""
        if pages[-1] - pages[0] < len(pages):
            return self.checked(file, pages[0], pages[-1] + 1)
        size = self.page_bytes
        parts = file.read_each(size, [self.start + page * size for page in pages])
        parts[-1] = parts[-1][: self.size - pages[-1] * size]  # the last page may be short
        if [*map(crc32, parts)] != [self.checksums[page] for page in pages]:
            # Perhaps one came in two parts.
            parts = [self.checked(file, page, page + 1) for page in pages]
        return b"".join(parts)

    def checked(self, file: _OpenFile, first: int, behind: int) -> bytes:
        """Return what stands in some pages, compared."""
        size = self.page_bytes
        start = first * size
        data = file.read(min(behind * size, self.size) - start, self.start + start)
        if behind == first + 1:  # as most are, of a matrix: without a view and a loop
            if crc32(data) != self.checksums[first]:
                raise DamagedCacheError(_DAMAGED_PAGE)
            return data
        pages = memoryview(data)
        for page, start in enumerate(range(0, len(data), size), first):
            if crc32(pages[start : start + size]) != self.checksums[page]:
                raise DamagedCacheError(_DAMAGED_PAGE)
        return data


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _page(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many rows of an array a page has, and how many bytes."""
    row = max(1, dtype.itemsize * prod(shape[1:]))
    rows = max(1, _PAGE_BYTES[min(max(len(shape), 1), 2)] // row)
    return rows, rows * row


def _checksums(array: Array | Patched) -> list[int]:
    if isinstance(array, Patched):
        return array.checksums()
    flat, (_, size) = _bytes(array), _page(array.dtype, array.shape)
    return [crc32(flat[start : start + size]) for start in range(0, len(flat), size)]


def _write(file: IO[bytes], header: dict[str, Any], arrays: Mapping[str, Array | Patched]) -> None:
    checksums = [_checksums(array) for array in arrays.values()]
    entries = [
        {"name": name, "dtype": array.dtype.str, "shape": array.shape, "pages": len(pages)}
        for (name, array), pages in zip(arrays.items(), checksums, strict=True)
    ]
    head_json = orjson.dumps({"header": header, "arrays": entries})
    table = np.array([crc for pages in checksums for crc in pages], "<u4").tobytes()
    start = _HEAD.size + len(head_json) + len(table)
    sizes = [array.nbytes for array in arrays.values()]
    length = start + _padding(start) + sum(n + _padding(n) for n in sizes)
    digest = _head_digest(head_json, table, length)
    file.write(_HEAD.pack(_MAGIC, _VERSION, len(head_json), length, digest))
    file.write(head_json + table + bytes(_padding(start)))
    for array in arrays.values():
        file.writelines(array.parts() if isinstance(array, Patched) else [_bytes(array)])
        file.write(bytes(_padding(array.nbytes)))


def _head_digest(head_json: bytes, table: bytes, length: int) -> bytes:
    digest = sha256(_HEAD.pack(_MAGIC, _VERSION, len(head_json), length, b""))
    digest.update(head_json)
    digest.update(table)  # of a million steps two megabytes, which are not copied for it
    return digest.digest()


def _read_head(file: _OpenFile) -> _Head:
    """Return what stands before the arrays of a file, compared."""
    read, size = partial(_pread, file.descriptor), os.fstat(file.descriptor).st_size
    head = read(_HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise DamagedCacheError("it is no cache of this library")
    _, version, header_bytes, length, digest = _HEAD.unpack(head)
    if version != _VERSION:
        raise DamagedCacheError(f"it has format {version}, not {_VERSION}")
    if length != size or _HEAD.size + header_bytes > length:
        raise DamagedCacheError(f"it is {size:,} bytes long, not {length:,}")
    try:
        head_json = read(header_bytes, _HEAD.size)
        described = orjson.loads(head_json)
        start = _HEAD.size + header_bytes
        table = read(min(4 * sum(e["pages"] for e in described["arrays"]), length), start)
        if _head_digest(head_json, table, length) != digest:
            raise DamagedCacheError("the checksum of its header does not fit: it is damaged")
        return _Head(dict(described["header"]), described["arrays"], table, start, length)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCacheError(f"its header does not describe it: {error}") from error


def _refuse_stale(header: Mapping[str, Any], expect: Mapping[str, Any]) -> None:
    if stale := sorted(k for k in expect if k not in header or header[k] != expect[k]):
        raise DamagedCacheError(f"it is stale: other {', '.join(stale)}")


def _entries(head: _Head) -> dict[str, _Entry]:
    """Return where the arrays of a file stand."""
    try:
        return _placed(head)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCacheError(f"its header does not describe it: {error}") from error


def _placed(head: _Head) -> dict[str, _Entry]:
    checksums, at = np.frombuffer(head.table, "<u4").tolist(), 0
    start, found = head.start + len(head.table), dict[str, _Entry]()
    for each in head.arrays:
        dtype, shape = np.dtype(each["dtype"]), tuple(map(int, each["shape"]))
        if dtype.kind not in _KINDS or min(shape, default=0) < 0:
            raise TypeError(f"an array of {dtype}, {shape}")
        start += _padding(start)
        (rows, size), nbytes = _page(dtype, shape), dtype.itemsize * prod(shape)
        first, at = at, at + -(-nbytes // size)
        found[each["name"]] = _Entry(dtype, shape, start, nbytes, rows, size, checksums[first:at])
        start += nbytes
    if start + _padding(start) != head.length or at != len(checksums):
        raise ValueError(f"its arrays end at {start:,} of {head.length:,}")
    return found


def untouched(shape: tuple[int, ...], kind: npt.DTypeLike) -> Array:
    """Return an array whose memory is taken as it is written to, not two megabytes at a time."""
    count, dtype = prod(shape), np.dtype(kind)
    if not count or not hasattr(mmap, "MADV_NOHUGEPAGE"):  # which Linux alone has, and needs
        return np.empty(shape, dtype)
    size, flags = count * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:  # as numpy says it
        raise MemoryError(f"no memory for an array of {size:,} bytes ({error.strerror})") from error
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)

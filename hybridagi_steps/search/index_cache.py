"""A file of arrays that is either exactly what was written, or not there.

Whatever reads damaged index bytes answers wrongly or crashes, so nothing is handed out before a
SHA-256 over every byte has been compared. A cache can be rebuilt: loading never raises, it says
what is wrong in the log and returns None; saving never raises for want of space or permission.
What the arrays mean is for the caller to know. Nothing is unpickled.

    magic 8 | version u32 | header length u32 | file length u64 | header JSON | padding
    | arrays, each from a multiple of 64 | SHA-256 of all before, 32
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps.errors import StorageError

Array = npt.NDArray[Any]

_MAGIC = b"HGSTEPS\x01"
_VERSION = 1
_HEAD = struct.Struct("<8sIIQ")
_DIGEST_BYTES = 32
_ALIGNMENT = 64
_KINDS = frozenset("biufc")
_ABANDONED_SECONDS = 3600
_log = logging.getLogger("hybridagi_steps")


def save_cache(
    path: str | os.PathLike[str], header: dict[str, Any], arrays: Mapping[str, Array | bytes]
) -> bool:
    """Write a cache file in one step: readers see the old file or the new one, whole.

    Args:
        path: Where; the folder must exist. The file is readable by its owner only.
        header: Small JSON values, to be compared when loading.
        arrays: Numbers or booleans of any shape. Bytes come back as a uint8 array.

    Returns:
        Whether it was written; if not, a warning says why and an older file is left as it was.
    """
    target = Path(path)
    plain = {name: _plain(name, values) for name, values in arrays.items()}
    try:
        _remove_abandoned(target)
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", suffix=".tmp", delete=False
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
        _sync_folder(target.parent)
    except OSError as error:
        _log.warning("the cache %s was not written: %s", target, error)
        return False
    return True


def load_cache(
    path: str | os.PathLike[str], expect: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """Read a cache file if it is whole and is the one expected.

    Args:
        path: Where it lies.
        expect: Items that the header must contain.

    Returns:
        The header and the arrays, read-only views of one buffer; None if the file is missing,
        stale, foreign or damaged, and the log says which.
    """
    try:
        return _read(Path(path), expect)
    except FileNotFoundError:
        _log.debug("no cache at %s", path)
    except _UnusableCacheError as reason:
        _log.info("the cache %s is not used: %s", path, reason)
    except (OSError, MemoryError) as error:
        _log.warning("the cache %s cannot be read: %s", path, error)
    return None


def erase_cache(path: Path) -> None:
    """Remove a cache file, or empty it where it cannot be removed."""
    try:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            os.truncate(path, 0)
            _log.info("the cache %s was emptied, since it cannot be removed: %s", path, error)
    except OSError as error:
        raise StorageError(
            f"what was deleted is gone from the memory, but {path} still holds words and vectors "
            f"of it, and can be neither removed nor emptied ({error.strerror}). Remove that file, "
            "or call vacuum() once it can be written."
        ) from error


class _UnusableCacheError(Exception):
    """Why a cache file is not used; never leaves this module."""


def _plain(name: str, values: Array | bytes) -> Array:
    array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"array {name!r} holds {array.dtype}, only numbers can be cached.")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _padding(length: int) -> int:
    return -length % _ALIGNMENT


def _write(file: IO[bytes], header: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    entries = [
        {"name": name, "dtype": array.dtype.str, "shape": array.shape, "bytes": array.nbytes}
        for name, array in arrays.items()
    ]
    head_json = orjson.dumps({"header": header, "arrays": entries})
    start = _HEAD.size + len(head_json)
    sizes = [array.nbytes for array in arrays.values()]
    length = start + _padding(start) + sum(n + _padding(n) for n in sizes) + _DIGEST_BYTES
    digest = sha256()

    def put(data: bytes | memoryview) -> None:
        digest.update(data)
        file.write(data)

    put(_HEAD.pack(_MAGIC, _VERSION, len(head_json), length))
    put(head_json + bytes(_padding(start)))
    for array in arrays.values():
        put(array.reshape(-1).view(np.uint8).data)
        put(bytes(_padding(array.nbytes)))
    file.write(digest.digest())


def _read(path: Path, expect: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise _UnusableCacheError("it is no cache of this library")
        _, version, header_bytes, length = _HEAD.unpack(head)
        if version != _VERSION:
            raise _UnusableCacheError(f"it has format {version}, not {_VERSION}")
        if length != size or _HEAD.size + header_bytes + _DIGEST_BYTES > size:
            raise _UnusableCacheError(f"it is {size:,} bytes long, not {length:,}")
        file.seek(0)
        content = np.fromfile(file, np.uint8, size)
    body = content[:-_DIGEST_BYTES]
    if len(content) != size or sha256(body.data).digest() != content[-_DIGEST_BYTES:].tobytes():
        raise _UnusableCacheError("its checksum does not fit: it is damaged")
    body.flags.writeable = False
    start = _HEAD.size + header_bytes
    try:
        described = orjson.loads(body[_HEAD.size : start].tobytes())
        header, arrays = dict(described["header"]), _views(body, start, described["arrays"])
    except (ValueError, TypeError, KeyError) as error:
        raise _UnusableCacheError(f"its header does not describe it: {error}") from error
    stale = sorted(key for key in expect if key not in header or header[key] != expect[key])
    if stale:
        raise _UnusableCacheError(f"it is stale: other {', '.join(stale)}")
    return header, arrays


def _views(body: npt.NDArray[np.uint8], start: int, entries: list[Any]) -> dict[str, Array]:
    """Cut the arrays out of the checked bytes without copying."""
    arrays: dict[str, Array] = {}
    for entry in entries:
        start += _padding(start)
        dtype = np.dtype(entry["dtype"])
        if dtype.kind not in _KINDS:
            raise TypeError(f"an array of {dtype}")
        raw = body[start : start + entry["bytes"]]
        arrays[entry["name"]] = raw.view(dtype).reshape(entry["shape"])
        start += entry["bytes"]
    return arrays


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files that writers killed halfway left behind."""
    for leftover in target.parent.glob(f".{target.name}.*.tmp"):
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - leftover.stat().st_mtime > _ABANDONED_SECONDS:
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; Windows cannot open folders and needs no such thing."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

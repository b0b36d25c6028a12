"""Errors of steps, memories, searches, stores and what moves in and out."""

from __future__ import annotations

from hybridagi_steps.errors.base import StepsError


class InvalidStepError(StepsError, ValueError):
    """A step that cannot be stored as it is; nothing was written."""


class StepTooLargeError(InvalidStepError):
    """A step whose JSON form is over the limit."""

    def __init__(self, step_id: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"step {step_id} is {size_bytes:,} bytes as JSON, the limit is {limit_bytes:,}. "
            "Store large payloads elsewhere and keep a reference in the step."
        )
        self.step_id, self.size_bytes, self.limit_bytes = step_id, size_bytes, limit_bytes


class StepTooDeepError(InvalidStepError):
    """A step nested deeper than the limit, or containing itself."""

    def __init__(self, step_id: str, path: str, limit: int) -> None:
        super().__init__(
            f"step {step_id} is nested deeper than {limit} levels at {path[:120]}. "
            "Flatten the value or store it as text."
        )
        self.step_id, self.path, self.limit = step_id, path, limit


class DuplicateStepError(InvalidStepError):
    """A step with this id is stored already, or stands twice in one call."""

    def __init__(self, step_id: str, *, in_call: bool = False) -> None:
        super().__init__(
            f"the id {step_id} stands twice in this call; nothing was stored. Give each step an id "
            "of its own, or leave one of the two out."
            if in_call
            else f"a step with id {step_id} is stored already; use memory.update() to replace it."
        )
        self.step_id, self.in_call = step_id, in_call


class UnknownStepError(StepsError, KeyError):
    """No step has this id."""

    def __init__(self, step_id: str) -> None:
        super().__init__(f"no step has the id {step_id!r}.")
        self.step_id = step_id


class UnknownRevocationError(StepsError, KeyError):
    """No revocation has this id."""

    def __init__(self, revocation_id: str) -> None:
        super().__init__(
            f"no revocation has the id {revocation_id!r}; memory.revocations() lists them."
        )
        self.revocation_id = revocation_id


class UnknownRunError(StepsError, KeyError):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run has the id {run_id!r}; memory.runs() lists them.")
        self.run_id = run_id


class InvalidFilterError(StepsError, ValueError):
    """A filter with an unknown key or a value of the wrong kind."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidQueryError(StepsError, ValueError):
    """A search that cannot be answered: empty query, k below 1, unknown mode."""


class VectorError(StepsError, ValueError):
    """A vector that cannot be indexed."""


class DimensionMismatchError(VectorError):
    """A vector has another length than the memory's embedder gives."""

    def __init__(self, got: int, expected: int, *, where: str = "vector") -> None:
        super().__init__(f"{where} has {got} dimensions, this memory holds {expected}.")
        self.got, self.expected = got, expected


class InvalidVectorError(VectorError):
    """A vector with NaN or Inf, or of length zero."""


class EmbedderError(StepsError, RuntimeError):
    """The embedder raised or returned something that is no embedding."""


class EmbedderMismatchError(EmbedderError):
    """The memory's embeddings were made by another embedder."""

    def __init__(self, stored: str, given: str) -> None:
        super().__init__(
            f"this memory was embedded with {stored}, it was opened with {given}. Open it with the "
            "first, or change it for good: memory.reembed(embedder), `hybridagi-steps reembed`."
        )
        self.stored, self.given = stored, given


class RerankerError(StepsError, RuntimeError):
    """The model of a reranker failed, or gave no usable scores."""


class StorageError(StepsError, OSError):
    """The store could not do what was asked; what was acknowledged before is intact."""


class ForeignFileError(StorageError):
    """The file exists and is not a step memory."""


class NewerSchemaError(StorageError):
    """The file was written by a newer version of this library."""


class DamagedFileError(StorageError):
    """The file is a step memory and does not hold together."""


class ReadOnlyStorageError(StorageError):
    """The store cannot be written."""


class DiskFullError(StorageError):
    """No space is left on the device."""


class StorageBusyError(StorageError, TimeoutError):
    """Another writer held the store for longer than the timeout."""


class MemoryClosedError(StepsError, RuntimeError):
    """The memory was used after close()."""


class MemoryNotPicklableError(StepsError, TypeError):
    """An in-memory store cannot be pickled: it lives in one process only."""


class InvalidMemoryError(StepsError, TypeError):
    """Something else was given where a step memory is needed."""

    def __init__(self, given: object, *methods: str) -> None:
        super().__init__(
            f"expected a step memory, got {type(given).__name__}: give an hs.StepMemory, such as "
            f'hs.StepMemory("steps.db"), or an object with {" and ".join(methods)}.'
        )


class UnsupportedAddressError(StepsError, ValueError):
    """No back-end serves this address."""


class RecordingError(StepsError):
    """A step was not recorded, or not whole; the program went on."""

    def __init__(self, what: str, error: BaseException) -> None:
        kind = type(error).__name__
        # Our own errors speak of sizes and files; foreign ones may quote the values.
        reason = f"{kind}: {error}" if isinstance(error, StepsError) else kind
        super().__init__(f"{what} ({reason})")
        self.what, self.error_type = what, kind


class ExchangeError(StepsError, ValueError):
    """A file that cannot be imported or exported; names the line where there is one."""

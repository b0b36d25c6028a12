"""Every error this library raises. Each says what happened, where, and what to do about it.

    StepsError
    ├── InvalidStepError (ValueError)          a step that cannot be stored
    │   ├── StepTooLargeError                  over 8 MiB as JSON
    │   ├── StepTooDeepError                   nested deeper than 64 levels
    │   └── DuplicateStepError                 its id is taken, or stands twice in one call
    ├── UnknownStepError (KeyError)            no step has this id
    ├── UnknownRunError (KeyError)             no run has this id
    ├── UnknownRevocationError (KeyError)      no revocation has this id
    ├── InvalidFilterError (ValueError)        an unknown key or a value of the wrong kind
    ├── InvalidQueryError (ValueError)         an empty query, k below 1, an unknown mode
    ├── VectorError (ValueError)
    │   ├── DimensionMismatchError             a vector of another length than the memory's
    │   └── InvalidVectorError                 NaN, Inf or all zero
    ├── EmbedderError (RuntimeError)           the embedder failed
    │   └── EmbedderMismatchError              the memory was built with another embedder
    ├── RerankerError (RuntimeError)           the model of a reranker failed
    ├── StorageError (OSError)
    │   ├── ForeignFileError                   the file is not a step memory
    │   ├── NewerSchemaError                   written by a newer version of this library
    │   ├── OlderSchemaError                   of an older version, and not this role's to migrate
    │   ├── DamagedFileError                   the file does not hold together
    │   ├── ReadOnlyStorageError               cannot be written
    │   │   └── MissingGrantError              a database's role lacks a grant for it
    │   ├── FileGoneError                      removed or replaced under an open memory
    │   ├── DiskFullError                      no space left
    │   ├── ConnectionLostError                a server's answer was lost: stored or not
    │   └── StorageBusyError (TimeoutError)    another writer holds the file too long
    ├── PlacementError (ValueError)            a placement of namespaces, with its line
    ├── CopyError (ValueError)                 a copy over something else, or of nothing
    │   └── CopyDiffersError                   a copy that is not equal to its source
    ├── MemoryClosedError (RuntimeError)       used after close()
    ├── MemoryNotPicklableError (TypeError)    an in-memory store lives in one process only
    ├── InvalidMemoryError (TypeError)         what was given is no step memory
    ├── InvalidSettingError (ValueError)       an option with a value that means nothing
    ├── UnsupportedAddressError (ValueError)   no back-end serves this address
    ├── RecordingError                         a step was not recorded, or not whole
    ├── ExchangeError (ValueError)             an import or export that cannot be done
    ├── ProgramError (ValueError)              a graph program, or a plan of one, that is not sound
    │   ├── InvalidProgramError                all that is wrong with a graph, at once
    │   ├── ProgramTextError                   its text form, with line and column
    │   ├── UnknownProgramError (KeyError)     no program has this name
    │   ├── ProtectedProgramError              an entry program may not be called or replaced
    │   ├── PromptError                        a prompt template: syntax, missing variable, unsafe
    │   └── DecisionError                      a model's answer that is none of the options
    ├── UnknownToolError (KeyError)            no tool has this name
    ├── ToolInputError (ValueError)            arguments that a tool cannot take
    ├── MessageError (ValueError)              what was given is no LLM message
    ├── ContextBudgetError (ValueError)        the newest message does not fit into the budget
    ├── UnknownSessionError (KeyError)         no session has this id
    ├── UnknownSequenceError (KeyError)        the session has no message at this sequence
    ├── SequenceConflictError (ValueError)     the session ends elsewhere than the writer thought
    │   └── UnknownBranchError (KeyError)      the session has no branch with this id
    ├── NotAllowedError (PermissionError)      another user's, or not there: this is not told
    │   └── OwnershipError                     a step that would join another user's run or step
    ├── PlanError (ValueError)                 a plan that cannot be run
    │   ├── PlanParseError                     its text, with line and field
    │   └── InvalidPlanError                   duplicate ids, unknown dependencies, cycles
    ├── ArtifactError (ValueError)             an artifact is missing or of the wrong shape
    │   └── ArtifactConflictError              two parallel steps wrote the same file
    ├── WorkspaceError (OSError)               a path outside the workspace, or no such file
    │   └── CommandNotAllowedError             a command that the workspace does not allow
    ├── LimitReachedError (RuntimeError)       steps, time, tokens or money ran out
    │   └── RateLimitedError                   a user asks a server more often than it allows
    ├── RunFailedError (RuntimeError)          a run of a session ended without completing
    └── MissingExtraError (ImportError)        an optional dependency is not installed

Foreign exceptions are translated where they enter and kept as `__cause__`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class StepsError(Exception):
    """Base of every error raised by this library."""

    def __str__(self) -> str:
        """The message as written; KeyError would print its repr."""
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidSettingError(StepsError, ValueError):
    """An option was given a value that means nothing."""


class MissingExtraError(StepsError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str, command: str | None = None) -> None:
        super().__init__(
            f"for {what} {extra} is missing: {command}."
            if command is not None
            else f"for {what} an extra is missing: pip install 'hybridagi-steps[{extra}]', or in a "
            f"checkout pip install '.[{extra}]'."
        )
        self.extra = extra


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

    def __init__(self, run_id: str, message: str | None = None) -> None:
        super().__init__(message or f"no run has the id {run_id!r}; memory.runs() lists them.")
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
            'first, or change it for good: memory.reembed("wordllama") or `hybridagi-steps reembed '
            "wordllama`, which every installation has."
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


class OlderSchemaError(StorageError):
    """The tables are of an older version, and belong to another role, who has to migrate them."""

    def __init__(self, message: str, *, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


class DamagedFileError(StorageError):
    """The file is a step memory and does not hold together."""


class ReadOnlyStorageError(StorageError):
    """The store cannot be written."""


class MissingGrantError(ReadOnlyStorageError):
    """The database refuses the role what was asked: it lacks a grant, or has another namespace."""


class FileGoneError(StorageError):
    """The file of an open memory was removed, renamed or replaced; nothing was written.

    Until it is closed the memory can still read what was in the file, and write it elsewhere.
    """

    def __init__(self, path: str, event: str) -> None:
        super().__init__(
            f"{path} {event}, since this memory opened it: it was removed, renamed or replaced, "
            "or its disk is gone. Nothing was written now. What was stored before is still held "
            "open by this process alone: memory.backup(PATH) writes it into another file. Then "
            "open the memory anew."
        )
        self.path = path


class DiskFullError(StorageError):
    """No space is left on the device."""


class ConnectionLostError(StorageError):
    """The server ended the connection in the middle of a call: a write is stored, or it is not.

    The same commit with its idempotency key, or the same step with its id, is stored once.
    """


class StorageBusyError(StorageError, TimeoutError):
    """Another writer held the store for longer than the timeout."""


class PlacementError(StepsError, ValueError):
    """A file that does not say where namespaces are."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """The line to mend, if it is one."""


class CopyError(StepsError, ValueError):
    """A memory that cannot be copied to where it was asked for; nothing was written."""


class CopyDiffersError(CopyError):
    """A copy that is not equal to its source."""

    def __init__(self, message: str, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.counts = dict(counts or {})
        """How many differ, by what they are."""


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


class ProgramError(StepsError, ValueError):
    """A graph program that is not sound; nothing was run."""


class InvalidProgramError(ProgramError):
    """All that is wrong with a graph program; `problems` holds one line each."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the program {name!r} cannot be built:{listed}")
        self.name, self.problems = name, list(problems)


class ProgramTextError(ProgramError):
    """The text form of a program cannot be read; `line` and `column` count from 1."""

    def __init__(self, message: str, *, line: int, column: int, name: str | None = None) -> None:
        where = f"{name}, " if name else ""
        super().__init__(f"{where}line {line}, column {column}: {message}")
        self.line, self.column, self.name = line, column, name


class _UnknownNameError(StepsError, KeyError):
    _kind = "thing"

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        listed = f"; known are {', '.join(sorted(known))}" if known else ""
        super().__init__(f"no {self._kind} is named {name!r}{listed}.")
        self.name = name


class UnknownProgramError(_UnknownNameError, ProgramError):
    """No program has this name."""

    _kind = "program"


class ProtectedProgramError(ProgramError):
    """An agent reached for an entry program, or for one that it depends on."""


class PromptError(ProgramError):
    """A prompt template with a syntax error, a missing variable, or a reach for attributes."""


class DecisionError(ProgramError):
    """A language model was asked to choose, and what it answered is none of the options."""

    def __init__(self, answer: str, options: Sequence[str], asked: int) -> None:
        super().__init__(
            f"the model was asked {asked} times and last answered {answer[:200]!r}, which is none "
            f"of {', '.join(options)}. Reword the question, take another model for the decision, "
            "or add an edge labelled OTHERWISE."
        )
        self.answer, self.options, self.asked = answer, list(options), asked


class UnknownToolError(_UnknownNameError):
    """No tool has this name."""

    _kind = "tool"


class ToolInputError(StepsError, ValueError):
    """What a tool was called with does not fit its arguments; it was not run."""


class PlanError(StepsError, ValueError):
    """A plan that cannot be run; nothing was."""


class PlanParseError(PlanError):
    """The text of a plan cannot be read; `line` counts from 1, `field` is the one at fault."""

    def __init__(self, message: str, *, line: int | None = None, field: str | None = None) -> None:
        at_line = f"line {line}" if line is not None else ""
        where = ", ".join(part for part in (at_line, field) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.line, self.field = line, field


class InvalidPlanError(PlanError):
    """All that is wrong with a plan; `problems` holds one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the plan cannot be run:" + "".join(f"\n  - {p}" for p in problems))
        self.problems = list(problems)


class ArtifactError(StepsError, ValueError):
    """An artifact that a step promised is missing or of the wrong shape."""


class ArtifactConflictError(ArtifactError):
    """Two steps that ran side by side wrote the same file; `files` names which."""

    def __init__(self, message: str, *, files: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.files = list(files)


class WorkspaceError(StepsError, OSError):
    """A path that leaves the workspace, or a file that is not there."""


class CommandNotAllowedError(WorkspaceError):
    """A command that is not on the workspace's list."""


class LimitReachedError(StepsError, RuntimeError):
    """Steps, time, tokens or money ran out; `limit` names which."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class RateLimitedError(LimitReachedError):
    """A user asks more often than `serve --requests-per-minute` allows."""

    def __init__(self, per_minute: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"this user may ask {per_minute:,} times a minute; try again in "
            f"{retry_after_seconds} s.",
            limit="requests_per_minute",
        )
        self.retry_after_seconds = retry_after_seconds


class RunFailedError(StepsError, RuntimeError):
    """A run of a session failed or was cancelled; `result`, a RunResult, is what there is of it.

    What the program raised is the `__cause__`, with its traceback.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class NotAllowedError(StepsError, PermissionError):
    """What was asked for belongs to another user, or is not there: which of both is not told."""

    @classmethod
    def of_session(cls, session_id: str) -> NotAllowedError:
        """Return the error about a session."""
        return cls(
            f"session {session_id!r} is another user's, or is not there; name a session of yours, "
            "or ask whoever may act as any user."
        )


class OwnershipError(NotAllowedError):
    """A new AgentStep names a run, or a step above it, that is another user's."""

    def __init__(self, step_id: str, field: str, value: str) -> None:
        super().__init__(
            f"step {step_id}: {field} {value!r} is another user's; leave it out, or name one of "
            "your own."
        )
        self.step_id, self.field, self.value = step_id, field, value


class MessageError(StepsError, ValueError):
    """What was given is no LLM message; the text names its place."""


class ContextBudgetError(StepsError, ValueError):
    """The system prompt and the newest unit of a session need more tokens than there are."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"the system prompt and the newest message need {needed:,} tokens, the budget is "
            f"{budget:,}. Raise the budget or shorten the system prompt."
        )
        self.needed, self.budget = needed, budget


class UnknownSessionError(StepsError, KeyError):
    """No session has this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session has the id {session_id!r}.")
        self.session_id = session_id


class UnknownSequenceError(StepsError, KeyError):
    """The session has no message at this sequence."""

    def __init__(self, session_id: str, sequence: int, last: int) -> None:
        super().__init__(
            f"session {session_id!r} has the messages 1 to {last}; there is no {sequence}."
            if last
            else f"session {session_id!r} has no messages; there is no {sequence}."
        )
        self.session_id, self.sequence, self.last = session_id, sequence, last


class SequenceConflictError(StepsError, ValueError):
    """The session ends elsewhere than the writer thought, or its key stored something else."""


class UnknownBranchError(SequenceConflictError, KeyError):
    """The session has no branch with this id."""

    def __init__(self, session_id: str, branch_id: int) -> None:
        super().__init__(
            f"session {session_id!r} has no branch {branch_id}; its `attempts` lists them."
        )
        self.session_id, self.branch_id = session_id, branch_id

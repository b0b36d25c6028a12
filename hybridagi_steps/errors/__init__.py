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
    │   ├── DamagedFileError                   the file does not hold together
    │   ├── ReadOnlyStorageError               cannot be written
    │   ├── DiskFullError                      no space left
    │   └── StorageBusyError (TimeoutError)    another writer holds the file too long
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
    ├── PlanError (ValueError)                 a plan that cannot be run
    │   ├── PlanParseError                     its text, with line and field
    │   └── InvalidPlanError                   duplicate ids, unknown dependencies, cycles
    ├── ArtifactError (ValueError)             an artifact is missing or of the wrong shape
    │   └── ArtifactConflictError              two parallel steps wrote the same file
    ├── WorkspaceError (OSError)               a path outside the workspace, or no such file
    │   └── CommandNotAllowedError             a command that the workspace does not allow
    ├── LimitReachedError (RuntimeError)       steps, time, tokens or money ran out
    └── MissingExtraError (ImportError)        an optional dependency is not installed

Foreign exceptions are translated where they enter and kept as `__cause__`.
"""

from __future__ import annotations

from hybridagi_steps.errors.base import InvalidSettingError, MissingExtraError, StepsError
from hybridagi_steps.errors.memory import (
    DamagedFileError,
    DimensionMismatchError,
    DiskFullError,
    DuplicateStepError,
    EmbedderError,
    EmbedderMismatchError,
    ExchangeError,
    ForeignFileError,
    InvalidFilterError,
    InvalidMemoryError,
    InvalidQueryError,
    InvalidStepError,
    InvalidVectorError,
    MemoryClosedError,
    MemoryNotPicklableError,
    NewerSchemaError,
    ReadOnlyStorageError,
    RecordingError,
    RerankerError,
    StepTooDeepError,
    StepTooLargeError,
    StorageBusyError,
    StorageError,
    UnknownRevocationError,
    UnknownRunError,
    UnknownStepError,
    UnsupportedAddressError,
    VectorError,
)
from hybridagi_steps.errors.plans import (
    ArtifactConflictError,
    ArtifactError,
    CommandNotAllowedError,
    InvalidPlanError,
    LimitReachedError,
    PlanError,
    PlanParseError,
    WorkspaceError,
)
from hybridagi_steps.errors.programs import (
    DecisionError,
    InvalidProgramError,
    ProgramError,
    ProgramTextError,
    PromptError,
    ProtectedProgramError,
    ToolInputError,
    UnknownProgramError,
    UnknownToolError,
)
from hybridagi_steps.errors.sessions import (
    ContextBudgetError,
    MessageError,
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)

__all__ = [
    "ArtifactConflictError",
    "ArtifactError",
    "CommandNotAllowedError",
    "ContextBudgetError",
    "DamagedFileError",
    "DecisionError",
    "DimensionMismatchError",
    "DiskFullError",
    "DuplicateStepError",
    "EmbedderError",
    "EmbedderMismatchError",
    "ExchangeError",
    "ForeignFileError",
    "InvalidFilterError",
    "InvalidMemoryError",
    "InvalidPlanError",
    "InvalidProgramError",
    "InvalidQueryError",
    "InvalidSettingError",
    "InvalidStepError",
    "InvalidVectorError",
    "LimitReachedError",
    "MemoryClosedError",
    "MemoryNotPicklableError",
    "MessageError",
    "MissingExtraError",
    "NewerSchemaError",
    "PlanError",
    "PlanParseError",
    "ProgramError",
    "ProgramTextError",
    "PromptError",
    "ProtectedProgramError",
    "ReadOnlyStorageError",
    "RecordingError",
    "RerankerError",
    "SequenceConflictError",
    "StepTooDeepError",
    "StepTooLargeError",
    "StepsError",
    "StorageBusyError",
    "StorageError",
    "ToolInputError",
    "UnknownProgramError",
    "UnknownRevocationError",
    "UnknownRunError",
    "UnknownSequenceError",
    "UnknownSessionError",
    "UnknownStepError",
    "UnknownToolError",
    "UnsupportedAddressError",
    "VectorError",
    "WorkspaceError",
]

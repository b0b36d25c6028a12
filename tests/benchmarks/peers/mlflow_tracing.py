"""MLflow's autolog for DSPy, writing every trace before the call returns.

By default MLflow exports traces from threads of its own and may drop them when their queue is full;
`MLFLOW_ENABLE_ASYNC_TRACE_LOGGING=false` makes it synchronous, which is the same promise as ours.
Traces go to a SQLite file, its default store. What autolog sets on DSPy (a callback, usage
tracking) is set for its own runs only.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dspy

_SETTINGS = {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MlflowTracing:
    """Autolog switched on, from opening to closing."""

    settings = "synchronous export to SQLite (rollback journal)"

    def __init__(self, folder: Path, **logged: bool) -> None:
        os.environ.update(_SETTINGS)
        for name in ("alembic", "mlflow"):
            logging.getLogger(name).setLevel(logging.WARNING)
        import mlflow

        self._file = folder / "mlflow.db"
        mlflow.set_tracking_uri(f"sqlite:///{self._file}")
        mlflow.create_experiment("bench", artifact_location=folder.as_uri())
        mlflow.set_experiment("bench")
        before = {name: getattr(dspy.settings, name) for name in ("callbacks", "track_usage")}
        mlflow.dspy.autolog(silent=True, **logged)
        self._set = {name: getattr(dspy.settings, name) for name in before}
        dspy.settings.configure(**before)

    def dspy_settings(self) -> dict[str, Any]:
        """Return what a program runs under to be traced."""
        return self._set

    def spans(self) -> int:
        """Return how many spans are in the file."""
        with closing(sqlite3.connect(self._file)) as connection:
            return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])

    def traces(self) -> list[list[Any]]:
        """Return the spans of each trace, oldest first."""
        import mlflow

        found = mlflow.search_traces(
            return_type="list", order_by=["timestamp_ms ASC"], max_results=10_000
        )
        return [trace.data.spans for trace in found]

    def scores(self) -> list[float]:
        """Return what each evaluation that was logged gave, in percent, oldest first."""
        import mlflow

        runs = mlflow.search_runs(output_format="list", order_by=["start_time ASC"])
        return [run.data.metrics["eval"] for run in runs if "eval" in run.data.metrics]

    def close(self) -> None:
        """Switch autolog off."""
        import mlflow

        mlflow.dspy.autolog(disable=True, silent=True)
        for name in _SETTINGS:
            os.environ.pop(name, None)

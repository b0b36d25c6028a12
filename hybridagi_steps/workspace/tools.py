"""The tools with which a model works in a workspace: plain functions, ready for `dspy.Tool`.

Signatures and docstrings are what the model sees, so they are short. Errors are raised as they are;
who runs the tools shows them to the model. A long answer is cut, and says so and how to see more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from hybridagi_steps.errors import CommandNotAllowedError
from hybridagi_steps.workspace.workspace import Workspace

MOST_LINES = 2_000
MOST_FOUND = 100
MOST_LISTED = 500
_LONGEST_LINE = 500


def workspace_tools(workspace: Workspace) -> list[Callable[..., str]]:
    """Return the tools of a workspace.

    Args:
        workspace: Where they work; an overlay, for a step that runs beside others.

    Returns:
        read_file, write_file, list_files, search_files, and run_command if any command is allowed.
    """

    def read_file(path: str, first_line: int = 1, last_line: int | None = None) -> str:
        """Return a text file of the workspace, or the lines from first_line to last_line."""
        lines = workspace.read(path).splitlines(keepends=True)
        first = max(1, first_line)
        last = min(len(lines), last_line or len(lines), first + MOST_LINES - 1)
        text = "".join(lines[first - 1 : last])
        if last_line is None and last < len(lines):
            text += f"\n… lines {last + 1} to {len(lines)} left out; ask with first_line={last + 1}"
        return text

    def write_file(path: str, content: str) -> str:
        """Write a text file of the workspace, whole; directories are made as needed."""
        workspace.write(path, content)
        return f"wrote {len(content.encode()):,} bytes to {path}"

    def list_files(pattern: str = "**") -> str:
        """Return the paths of the files that match a pattern such as src/**/*.py, one a line."""
        found = workspace.list(pattern)
        return _listed(found, MOST_LISTED) or f"no file matches {pattern}"

    def search_files(text: str, pattern: str = "**", ignore_case: bool = False) -> str:
        """Return the lines that contain a text, as path:line: text."""
        found = workspace.search(text, pattern, ignore_case=ignore_case, limit=MOST_FOUND + 1)
        lines = [f"{hit.path}:{hit.line}: {hit.text[:_LONGEST_LINE]}" for hit in found]
        return _listed(lines, MOST_FOUND) or f"{text!r} is in no file that matches {pattern}"

    def run_command(command: str) -> str:
        try:
            argv = shlex.split(command)
        except ValueError as error:
            raise CommandNotAllowedError(f"{command!r} cannot be read: {error}") from error
        result = workspace.run(argv)
        if result.timed_out:
            seconds = workspace.timeout_seconds
            return f"stopped after {seconds:g} s; output so far:\n{result.output}"
        return f"exit code {result.exit_code}\n{result.output}"

    run_command.__doc__ = (
        "Run a command in the workspace, without a shell; return exit code and output. "
        + ("There is no network. " if workspace.commands.confined else "")
        + f"Allowed beginnings: {workspace.commands}"
    )
    tools: list[Callable[..., str]] = [read_file, write_file, list_files, search_files]
    return [*tools, run_command] if workspace.commands.listed else tools


def _listed(lines: list[str], limit: int) -> str:
    more = len(lines) - limit
    shown = "\n".join(line.encode("utf-8", "backslashreplace").decode() for line in lines[:limit])
    return f"{shown}\n… more left out; narrow it down" if more > 0 else shown

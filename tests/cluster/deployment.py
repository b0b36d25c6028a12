"""What `.github/deploy` says: the processes of the compose file, the lines of the Dockerfile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / ".github" / "deploy"
IMAGE = "hybridagi-steps"
"""The image of our own processes; its entry point is the command line."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


class Instruction(NamedTuple):
    """One line of a Dockerfile, those that go on joined."""

    name: str
    words: str


def compose() -> dict[str, Any]:
    """Return the compose file as it stands."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def our_services() -> dict[str, dict[str, Any]]:
    """Return the services that run our image, by name."""
    services: dict[str, dict[str, Any]] = compose()["services"]
    return {name: service for name, service in services.items() if service["image"] == IMAGE}


def command_of(service: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Return the words that a service gives to the command line."""
    return [filled(word, variables) for word in service["command"]]


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Return a text of the compose file with its variables put in, as compose does.

    Raises:
        KeyError: One that is asked for is not there.
    """

    def value(found: re.Match[str]) -> str:
        name, kind, words = found.groups()
        if given := variables.get(name):
            return given
        if kind != "-":
            raise KeyError(name)
        return words

    return _VARIABLE.sub(value, text)


def variables_of(text: str) -> set[str]:
    """Return the names of the variables in a text."""
    return {found[1] for found in _VARIABLE.finditer(text)}


def dockerfile() -> list[Instruction]:
    """Return the instructions of the Dockerfile, in order."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(" ", 1)) for line in joined.splitlines()]


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, `FROM` first."""
    found: list[list[Instruction]] = []
    for instruction in dockerfile():
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def copied_paths() -> list[Path]:
    """Return what the first stage takes from the checkout."""
    words = [shlex.split(one.words) for one in stages()[0] if one.name == "COPY"]
    return [DEPLOY.parents[1] / source for *sources, _ in words for source in sources]


def settings_of(instruction: Instruction) -> dict[str, str]:
    """Return the variables that an ENV sets."""
    return dict(word.split("=", 1) for word in shlex.split(instruction.words))


def installed_extras() -> set[str]:
    """Return the extras that the second stage installs the wheel with."""
    [install] = [one.words for one in stages()[1] if "pip install" in one.words]
    return set(re.findall(r"\[([\w,]+)\]", install)[0].split(","))

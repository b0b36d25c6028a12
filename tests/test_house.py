"""The layout of the package, held by measurement: rooms, arrows, sizes."""

from __future__ import annotations

import configparser
import re
from collections import Counter
from pathlib import Path

import pytest
from import_graph import circles, import_graph

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hybridagi_steps"
FILES = sorted(PACKAGE.rglob("*.py"))
GRAPH = import_graph(PACKAGE)

DOORS = {"hybridagi_steps", "hybridagi_steps.programs", "hybridagi_steps.programs.tools"}
"""Documented names that lead to modules of other rooms; nothing inside imports them."""

MOST_FILES = 370
MOST_FILES_IN_A_FOLDER = 20
MOST_SWITCHED_OFF = 40
TESTS_TO_SOURCE = (0.9, 1.5)


def room_of(module: str) -> str:
    """Return the folder below the package, or the module that stands for itself."""
    return ".".join(module.split(".")[:2])


def layers() -> dict[str, int]:
    """Return the layer of each room as `setup.cfg` has it, 0 on top."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["importlinter:contract:layers"]["layers"].strip().splitlines()
    return {room: at for at, line in enumerate(lines) for room in re.findall(r"[\w.]+", line)}


def inside() -> dict[str, set[str]]:
    """Return the graph without the doors."""
    return {name: targets - DOORS for name, targets in GRAPH.items() if name not in DOORS}


def test_the_graph_sees_imports_of_every_kind(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").write_text("from pack.low import a\n")
    (package / "low" / "__init__.py").write_text('"""Speaks of pack.b alone."""\n')
    (package / "low" / "a.py").write_text("def f():\n    import pack.b\n")
    (package / "b.py").write_text(
        "if TYPE_CHECKING:\n    from pack.c import C\nname = 'pack.low.a:factory'\n"
    )
    (package / "c.py").write_text("import sys\nfound = sys.modules.get('pack.b')\n")
    graph = import_graph(package)
    assert graph["pack"] == set()
    assert graph["pack.low"] == set()
    assert graph["pack.low.a"] == {"pack.b"}
    assert graph["pack.b"] == {"pack.c", "pack.low.a"}
    assert graph["pack.c"] == {"pack.b"}
    assert circles(graph) == [["pack.b", "pack.c", "pack.low.a"]]


def test_no_import_closes_a_circle() -> None:
    assert circles(inside()) == []


def test_no_rooms_close_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for name, targets in inside().items():
        rooms.setdefault(room_of(name), set()).update(map(room_of, targets))
    assert circles({room: targets - {room} for room, targets in rooms.items()}) == []


def test_every_arrow_points_down() -> None:
    at = layers()
    up = [
        f"{name} -> {target}"
        for name, targets in inside().items()
        for target in targets
        if room_of(name) != room_of(target)
        and name != "hybridagi_steps.__main__"
        and at[room_of(name)] >= at[room_of(target)]
    ]
    assert up == []


def test_nothing_inside_goes_through_a_documented_door() -> None:
    through = [name for name, targets in GRAPH.items() if name not in DOORS and targets & DOORS]
    # The version stands at the top level, and whoever says it asks there.
    assert [name for name in through if GRAPH[name] & (DOORS - {"hybridagi_steps"})] == []


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in FILES}),
    ids=lambda folder: str(folder.relative_to(ROOT)),
)
def test_a_room_is_seen_at_one_glance(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= MOST_FILES_IN_A_FOLDER


def test_a_file_is_found_by_its_name_alone() -> None:
    same_on_purpose = {"__init__", "store", "steps", "database", "schema", "translation"}
    names = Counter((path.relative_to(PACKAGE).parts[0], path.stem) for path in FILES)
    assert {
        name for name, count in names.items() if count > 1 and name[1] not in same_on_purpose
    } == set()


def test_the_package_keeps_its_size() -> None:
    assert len(FILES) <= MOST_FILES
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in FILES)
    tests = (ROOT / "tests").rglob("*.py")
    tested = sum(len(path.read_text("utf-8").splitlines()) for path in tests)
    least, most = TESTS_TO_SOURCE
    assert least <= tested / lines <= most


def test_types_are_strict_nearly_everywhere() -> None:
    heads = [
        line
        for path in FILES
        for line in path.read_text("utf-8").splitlines()
        if re.match(r"# pyright: .*=false", line)
    ]
    assert len(heads) <= MOST_SWITCHED_OFF

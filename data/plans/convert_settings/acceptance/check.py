"""Accepts `convert_settings`: good files are typed JSON, bad ones are refused with every fault."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
GOOD = {
    "alpha": {
        "server": {"host": "alpha.example", "port": 443, "tags": ["web", "public", "eu"]},
        "limits": {"timeout": 2.5, "debug": True},
    },
    "beta": {
        "server": {"host": "beta.example", "port": 8080, "tags": []},
        "limits": {"timeout": 30.0, "debug": False},
    },
    "delta": {
        "server": {"host": "größe.example", "port": 8080, "tags": []},
        "limits": {"timeout": 0.0, "debug": False},
    },
}
FAULTS = {"gamma.ini": ["host", "port", "colour", "timeout", "debug"], "epsilon.ini": ["cache"]}


def check(out):
    """Compare a folder of results with what is expected."""
    found = {path.stem for path in out.glob("*.json")}
    assert found == {*GOOD, "errors"}, found
    for name, wanted in GOOD.items():
        got = json.loads((out / f"{name}.json").read_text("utf-8"))
        assert got == wanted, (name, got)
        assert isinstance(got["limits"]["debug"], bool)
        assert isinstance(got["server"]["port"], int)
    errors = json.loads((out / "errors.json").read_text("utf-8"))
    assert set(errors) == set(FAULTS), errors
    for name, words in FAULTS.items():
        assert len(errors[name]) == len(words), errors[name]
        for word in words:
            assert any(word in fault for fault in errors[name]), (word, errors[name])


def main():
    check(ROOT / "out")
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "work"
        shutil.copytree(ROOT, again)
        shutil.rmtree(again / "out")
        command = [sys.executable, "-B", "-m", "convert"]
        subprocess.run(command, cwd=again, capture_output=True, check=False)
        check(again / "out")
    modules = [path.name for path in (ROOT / "convert").glob("*.py")]
    assert len(modules) >= 3, f"validation is no module of its own: {modules}"


main()
print("accepted")

"""Accepts `add_cli_option`: both options work, alone and together, and nothing else changed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
PLAIN = "     3 the\n     2 and\n     2 cat\n     2 über\n     1 bird\n     1 dog\n"


def tally(*arguments):
    """Run the tool; return exit code and standard output."""
    command = [sys.executable, "-B", "-X", "utf8", "-m", "tally", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return done.returncode, done.stdout.decode("utf-8")


def main():
    assert tally("sample.txt") == (0, PLAIN), "the plain output changed"
    assert tally("sample.txt", "--top", "2") == (0, "".join(PLAIN.splitlines(True)[:2]))
    assert tally("sample.txt", "--top", "99") == (0, PLAIN)
    code, output = tally("--json", "sample.txt")
    assert code == 0
    assert list(json.loads(output).items())[:4] == [("the", 3), ("and", 2), ("cat", 2), ("über", 2)]
    code, output = tally("--json", "--top", "1", "sample.txt")
    assert (code, json.loads(output)) == (0, {"the": 3})
    for bad in ("0", "-1", "x"):
        assert tally("sample.txt", f"--top={bad}")[0] == 2, bad
    assert (ROOT / "tally/formats.py").is_file()
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "--top" in readme and "--json" in readme
    tests = (ROOT / "tests/test_options.py").read_text("utf-8")
    assert "--top" in tests and "--json" in tests
    command = [sys.executable, "-B", "-m", "unittest", "discover", "-t", ".", "-s", "tests"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


main()
print("accepted")

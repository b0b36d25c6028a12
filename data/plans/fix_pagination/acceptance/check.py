"""Accepts `fix_pagination`: both bugs are gone, tests would catch them, the changelog says so."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT))

from paging import Page, page_count, paginate


def run_tests(root):
    """Return the exit code of the package's own tests."""
    command = [sys.executable, "-B", "-m", "unittest", "discover", "-t", ".", "-s", "tests"]
    return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode


def main():
    assert [page_count(n, 10) for n in (0, 1, 9, 10, 11, 20, 21)] == [1, 1, 1, 1, 2, 2, 3]
    for total in range(35):
        for size in (1, 3, 10):
            pages = [paginate(range(total), 1, size)]
            while pages[-1].next is not None:
                pages.append(paginate(range(total), pages[-1].next, size))
            assert [x for page in pages for x in page.items] == list(range(total)), (total, size)
            assert len(pages) == pages[0].count
    assert Page((), 1, 1).next is None and Page((), 1, 2).next == 2
    assert Page((), 2, 2).previous == 1 and Page((), 1, 2).previous is None
    assert run_tests(ROOT) == 0, "the package's own tests fail"
    source = (ROOT / "paging/pages.py").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "work"
        shutil.copytree(ROOT, broken)
        (broken / "paging/pages.py").write_text(
            re.sub(r"return max\(1, .*\)", "return max(1, total // size)", source), "utf-8"
        )
        assert run_tests(broken) != 0, "the tests do not catch the lost page"
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "## Unreleased" in changes and "## 1.0" in changes
    assert changes.index("## Unreleased") < changes.index("## 1.0")


main()
print("accepted")

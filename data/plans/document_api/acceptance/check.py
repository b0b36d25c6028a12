"""Accepts `document_api`: every public function stands in the documentation, and examples run."""

import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT))
MODULES = ("plane", "solid", "units")


def sections(page):
    """Return the text below each second-level heading."""
    parts = re.split(r"^## +(.+?) *$", page, flags=re.MULTILINE)
    return dict(zip((name.strip("`") for name in parts[1::2]), parts[2::2], strict=True))


def check_module(name):
    """Compare a page with the functions of its module."""
    module = import_module(f"shapes.{name}")
    page = (ROOT / f"docs/{name}.md").read_text("utf-8")
    source = (Path(__file__).parent / f"{name}.txt").read_text("utf-8")
    assert (ROOT / f"shapes/{name}.py").read_text("utf-8") == source, "the code was changed"
    tree = ast.parse(source)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [getattr(module, name) for name in names if not name.startswith("_")]
    found = sections(page)
    assert set(found) == {f"{f.__name__}{inspect.signature(f)}" for f in public}, list(found)
    for function in public:
        signature = inspect.signature(function)
        text = found[f"{function.__name__}{signature}"]
        assert function.__doc__.splitlines()[0] in text, function.__name__
        for parameter in signature.parameters.values():
            assert f"`{parameter.name}`" in text, (function.__name__, parameter.name)
            if parameter.default is not parameter.empty:
                assert f"`{parameter.default!r}`" in text, (function.__name__, parameter.name)
        examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        assert examples and all("assert" in example for example in examples), function.__name__
        for example in examples:
            exec(compile(example, f"{name}.md", "exec"), {})
    return module.__doc__


def main():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    for name in MODULES:
        about = check_module(name)
        lines = [line for line in index.splitlines() if f"({name}.md)" in line]
        assert len(lines) == 1 and about.strip() in lines[0], name
    for link in re.findall(r"\]\(([^)]+)\)", index):
        assert (ROOT / "docs" / link).is_file(), f"{link} leads nowhere"


main()
print("accepted")

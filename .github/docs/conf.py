"""How the documentation is built: `sphinx-build -W .github/docs build/docs`.

Pages are Markdown; the reference is made of docstrings. Nothing is fetched while it builds.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pydantic

import hybridagi_steps

# autodoc imports what is not loaded yet as type checkers see it, which no model survives.
for _name in hybridagi_steps.__all__:
    getattr(hybridagi_steps, _name)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_record_and_search.ipynb"
"""Where the pictures come from."""

project = "hybridagi_steps"
version = release = hybridagi_steps.__version__
copyright = "the hybridagi_steps authors, Apache-2.0"  # noqa: A001 - Sphinx names it so

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["conf.py"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # several records have a field called `type`

html_theme = "furo"
html_title = f"hybridagi_steps {version}"
html_copy_source = False
html_show_sphinx = False


def _without_signature(
    _app: Any, what: str, _name: str, documented: Any, *_: Any
) -> tuple[str, str] | None:
    """Leave out the signatures of records: their fields follow, each with its type."""
    if what == "class" and issubclass(documented, pydantic.BaseModel):
        return "", ""
    return None


def _as_rst(_app: Any, what: str, _name: str, _object: Any, _opt: Any, lines: list[str]) -> None:
    """Write docstrings the way Sphinx reads them: code in two backticks, drawings as they are."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    text = text.replace("\n\n    StepsError\n", "\n\n::\n\n    StepsError\n")
    if what in ("attribute", "property"):
        text = f": {text}"  # else napoleon takes what stands before the first colon for a type
    lines[:] = text.split("\n")


def _add_contents(_app: Any, name: str, source: list[str]) -> None:
    """Make the contents of the links of the first page, which a repository shows as links."""
    if name == "index":
        pages = dict.fromkeys([*re.findall(r"\]\((\w+)\.md\)", source[0]), "api"])
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def _keep_pictures(app: Any, exception: Exception | None) -> None:
    """Write the plots of the notebook to `_static/plots`, each under its function's name."""
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static" / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        drawn = re.search(r"^hs\.plots\.(\w+)\(", "".join(cell["source"]), re.MULTILINE)
        for output in cell.get("outputs", ()):
            if drawn and "image/png" in output.get("data", {}):
                picture = base64.b64decode(output["data"]["image/png"])
                (folder / f"{drawn[1]}.png").write_bytes(picture)


def setup(app: Any) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _keep_pictures)
    app.connect("autodoc-process-signature", _without_signature)
    app.connect("autodoc-process-docstring", _as_rst, priority=400)  # napoleon comes at 500

"""In from files and out to files, one module per format.

Parsers are generators over records and know no memory: `formats` lists them, `transfer` connects
them to a memory, `export` goes the other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.exchange.export import export_file, salvage_file
    from hybridagi_steps.exchange.transfer import ImportReport, check_file, import_file

__all__ = ["ImportReport", "check_file", "export_file", "import_file", "salvage_file"]

_HOMES: dict[str, str | None] = {
    "ImportReport": "transfer",
    "check_file": "transfer",
    "export_file": "export",
    "import_file": "transfer",
    "salvage_file": "export",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

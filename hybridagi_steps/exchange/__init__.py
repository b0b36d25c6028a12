"""In from files and out to files, one module per format.

Parsers are generators over records and know no memory: `formats` lists them, `importer` connects
them to a memory, `exporter` goes the other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.exchange.exporter import export_file as export_file
    from hybridagi_steps.exchange.exporter import salvage_file as salvage_file
    from hybridagi_steps.exchange.importer import ImportReport as ImportReport
    from hybridagi_steps.exchange.importer import check_file as check_file
    from hybridagi_steps.exchange.importer import import_file as import_file


_NAMES = {
    "exporter": "export_file salvage_file",
    "importer": "ImportReport check_file import_file",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

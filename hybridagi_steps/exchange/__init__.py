"""In from files and out to files, one module per format.

Parsers are generators over lines and know no memory; `transfer` connects them to one.
"""

from __future__ import annotations

from hybridagi_steps.exchange.transfer import ImportReport, export_file, import_file

__all__ = ["ImportReport", "export_file", "import_file"]

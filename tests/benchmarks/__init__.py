"""The measurements behind every number we print, one module per question.

Each module has `measure(**options)`, which returns plain numbers with the conditions they were
measured under, and `report(json_output, **options)`, which prints them.
"""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
"""Where processes that measure run: the modules here are found from nowhere else."""

"""`python -m hybridagi_steps` is the command line."""

from __future__ import annotations

import sys

from hybridagi_steps.cli import main

sys.exit(main())

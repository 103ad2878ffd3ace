"""Sides that exist for the tests alone stand beside them, not in the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

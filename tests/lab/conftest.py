"""What other test files still import from here."""

from tests.commands import ROOT, Commands
from tests.small import SMALL

__all__ = ["ROOT", "SMALL", "Commands"]

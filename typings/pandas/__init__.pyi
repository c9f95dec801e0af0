# Pandas annotates its results as unions that no caller can tell apart. To pyright its
# tables and columns are therefore anything at all.
from typing import Any

def __getattr__(name: str) -> Any: ...

"""The type of a table in annotations."""

from typing import Any

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all

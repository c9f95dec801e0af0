"""The one table of tolerances: relative to the largest number expected.

No test loosens one. Each is set by the rounding of the dtype, and the negative twins
of the tests show that what it must catch is larger by orders of magnitude.
"""

from collections.abc import Mapping
from typing import Any

import jax.typing
import numpy as np

TOLERANCE = {
    # Results are compared with the float64 transcription of the paper.
    "float64": 1e-11,
    # They are compared with it too, or are two ways to the same numbers.
    "float32": 1e-5,
    # The same float32 computation is made in other company or another order.
    "same": 1e-6,
    # The mantissa has 8 bits: a rounding is 2⁻⁹.
    "bfloat16": 3e-2,
    # Derivatives in float64 are compared with central differences of step 1e-5.
    "derivative": 1e-6,
}


def relative_error(
    actual: jax.typing.ArrayLike, expected: jax.typing.ArrayLike
) -> float:
    """max |actual − expected| / max |expected|; NaN when either has one."""
    actual = np.asarray(actual, float)
    expected = np.asarray(expected, float)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    difference = np.abs(actual - expected).max()
    return float(difference / np.abs(expected).max())


def assert_close_rows(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares two records, whose floats come from the same float32 computation."""
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float) and value:
            assert relative_error(actual[key], value) < TOLERANCE["same"], key
        else:
            assert actual[key] == value, key

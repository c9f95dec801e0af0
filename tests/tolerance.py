"""The one table of tolerances: relative to the largest number expected.

No test loosens one. Each is set by the rounding of the dtype, and the negative twins
of the tests show that what it must catch is larger by orders of magnitude.
"""

import jax.typing
import numpy as np

TOLERANCE = {
    "float64": 1e-11,  # against the float64 transcription of the paper
    "float32": 1e-5,  # the same, and between two ways to the same numbers
    "same": 1e-6,  # the same float32 computation in other company or another order
    "bfloat16": 3e-2,  # 8 bits of mantissa: 2⁻⁹ a rounding
    "derivative": 1e-6,  # float64, against central differences of step 1e-5
}


def relative_error(
    actual: jax.typing.ArrayLike, expected: jax.typing.ArrayLike
) -> float:
    """max |actual − expected| / max |expected|; NaN when either has one."""
    actual, expected = np.asarray(actual, float), np.asarray(expected, float)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())

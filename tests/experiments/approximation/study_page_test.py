"""The table of causes has a row for each head and number of landmarks."""

import pandas as pd

from nystromformer.experiments.approximation import causes
from nystromformer.experiments.approximation.study_page import table_of_causes


def test_table_of_causes_has_errors_spreads_and_what_limits():
    row = {method: 0.1 * i for i, method in enumerate(causes.METHODS, 1)}
    row |= {method + causes.SPREAD: 1.5 for method in causes.RANDOM_METHODS}
    row |= {"inverse_error": 12.34, "inverse_residual": 0.056, "limited_by": "rank"}
    index = pd.MultiIndex.from_tuples([(2, 1, 16)], names=causes.INDEX_COLUMNS)
    header, _, line = table_of_causes(pd.DataFrame([row], index=index))

    cells = dict(zip(header.split(" | "), line.split(" | "), strict=True))
    assert cells == {
        "| layer": "| 2",
        "head": "1",
        "M": "16",
        "best rank": "0.1",
        "best middle matrix": "0.2",
        "Nyström": "0.3",
        "exact inverse": "0.4",
        "no inverse": "0.5",
        "random landmarks": "0.6 (×1.5)",
        "standard Nyström": "0.7 (×1.5)",
        "iterated": "0.8 (×1.5)",
        "Performer": "0.9 (×1.5)",
        "‖Z − A⁺‖ / ‖A⁺‖": "12",
        "‖AZA − A‖ / ‖A‖": "0.056",
        "limited by |": "rank |",
    }

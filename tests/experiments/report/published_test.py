"""The published numbers agree with the averages that were published with them."""

import pytest

from lra_tasks.task import LRA
from nystromformer.experiments.report.published import (
    FINE_TUNED,
    LONGER,
    PUBLISHED,
    published,
)


def test_a_row_has_the_average_that_it_says():
    for row in (row for rows in PUBLISHED.values() for row in rows.values()):
        *accuracies, average = row
        assert sum(accuracies) / len(LRA) == pytest.approx(average, abs=0.0051)


def test_numbers_are_found_by_attention_and_task():
    assert published("softmax", "image") == {"Xiong et al. 2021": 38.20}
    assert list(published("nystrom", "average").values()) == [58.95, 58.93, 57.61]
    assert published("nystrom", "mrpc") == {FINE_TUNED: 88.1, LONGER: 87.5}
    assert published("softmax", "imdb") == {FINE_TUNED: 93.3}
    assert published("nystrom", "pathx") == published("identity", "text") == {}

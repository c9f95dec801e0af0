"""The scores that others have published, cell by cell as they are printed.

1: Xiong et al., AAAI 2021, Tables 3 and 2. 2: Skyformer, Chen et al., NeurIPS 2021. 3:
xformers, BENCHMARKS.md. A mean over a row cannot see two of its cells swapped.
"""

import pytest

from nystromformer.experiments.report.published import AVERAGE, SCORES

LRA = """
             ListOps  Text  Retrieval  Image  Pathfinder  Avg
1 softmax      37.10 65.02 79.35 38.20 74.16 58.77
1 reformer     19.05 64.88 78.64 43.29 69.36 55.04
1 linformer    37.25 55.91 79.37 37.84 67.60 55.59
1 performer    18.80 63.81 78.62 37.07 69.87 53.63
1 nystrom      37.15 65.52 79.56 41.58 70.94 58.95
2 nystrom      38.51 64.83 80.52 41.30 69.48 58.93
2 softmax      38.37 61.95 80.69 40.57 65.26 57.37
2 linformer    37.45 58.93 78.19 37.96 60.93 54.69
2 performer    38.02 64.19 80.04 41.43 66.30 58.00
2 reformer     37.68 62.93 78.99 48.87 66.49 58.99
2 bigbird      39.25 63.86 80.28 43.16 68.72 59.05
3 nystrom      36.29 63.24 78.18 42.86 67.49 57.61
3 softmax      37.50 62.66 79.24 38.69 70.37 57.69
3 performer    19.56 62.76 81.10 36.09 67.23 53.35
3 linformer    36.69 57.39 76.41 35.57 65.12 54.20
"""
# The columns of MNLI are the matched examples and the mismatched ones; the last row has
# 1,024 tokens.
GLUE = """
                  SST-2  MRPC  QNLI  QQP  MNLI  MNLI  IMDb
softmax           90.0  88.4  90.3  87.3  82.4  82.4  93.3
nystrom           91.4  88.1  88.7  86.3  80.9  82.2  93.2
nystrom,seq1024   91.4  87.5  88.7  86.3  80.9  81.4  93.0
"""
TASKS = ["listops", "text", "retrieval", "image", "pathfinder", "average"]
SUBSETS = ["sst2", "mrpc", "qnli", "qqp", "mnli", "mnli mismatched", "imdb"]
CELLS = SCORES.set_index(["source", "attention", "preset"])


def lines_of(table):
    """The words of each line but the headings."""
    return [line.split() for line in table.strip().splitlines()[1:]]


def test_every_published_score_of_the_lra_is_in_its_cell():
    lines = lines_of(LRA)
    for source, attention, *scores in lines:
        cells = CELLS[TASKS].loc[(int(source), attention, "")]
        assert cells.tolist() == [float(score) for score in scores]
    num_cells = CELLS[TASKS].notna().to_numpy().sum()
    assert num_cells == len(lines) * len(TASKS)


def test_every_published_score_of_fine_tuning_is_in_its_cell():
    lines = lines_of(GLUE)
    for name, *scores in lines:
        attention, _, preset = name.partition(",")
        cells = CELLS[SUBSETS].loc[(1, attention, preset)]
        assert cells.tolist() == [float(score) for score in scores]
    num_cells = CELLS[SUBSETS].notna().to_numpy().sum()
    assert num_cells == len(lines) * len(SUBSETS)


def test_published_averages_are_those_of_the_cells():
    rows = SCORES[SCORES[AVERAGE].notna()]
    assert len(rows) == 15
    means = rows[TASKS[:-1]].mean(axis=1)
    assert list(means) == pytest.approx(list(rows[AVERAGE]), abs=0.05)

"""Test scores that others have published, in per cent: Table 3, and Table 2 of text."""

from lra_tasks.task import LRA

XIONG, RERUN, THIRD = "Xiong et al. 2021", "a re-run", "another re-run"
FINE_TUNED, LONGER = f"{XIONG}, Table 2", f"{XIONG}, Table 2, 1,024 tokens"
SOURCES = {
    XIONG: (
        "Nyströmformer, AAAI 2021, Table 3: the paper's settings; Reformer with 2 "
        "hashes, Linformer and Performer with 256"
    ),
    RERUN: (
        "independent, of Nyströmformer with 128 landmarks and no convolution, 3 seeds, "
        "50,000 steps"
    ),
    THIRD: "independent, of Nyströmformer with 128 landmarks",
    FINE_TUNED: "512 tokens, pre-trained on BookCorpus and Wikipedia; F1 for MRPC, QQP",
    LONGER: "likewise, pre-trained further on 1,024 tokens",
}

# attention -> source -> accuracies in the order of LRA, and their average as printed.
PUBLISHED = {
    "softmax": {XIONG: (37.10, 65.02, 79.35, 38.20, 74.16, 58.77)},
    "reformer": {XIONG: (19.05, 64.88, 78.64, 43.29, 69.36, 55.04)},
    "linformer": {XIONG: (37.25, 55.91, 79.37, 37.84, 67.60, 55.59)},
    "performer": {XIONG: (18.80, 63.81, 78.62, 37.07, 69.87, 53.63)},
    "nystrom": {
        XIONG: (37.15, 65.52, 79.56, 41.58, 70.94, 58.95),
        RERUN: (38.51, 64.83, 80.52, 41.30, 69.48, 58.93),
        THIRD: (36.29, 63.24, 78.18, 42.86, 67.49, 57.61),
    },
}
TEXTS = ("sst2", "mrpc", "qnli", "qqp", "mnli", "mnli_mm", "imdb")
TABLE2 = {
    "softmax": {FINE_TUNED: (90.0, 88.4, 90.3, 87.3, 82.4, 82.4, 93.3)},
    "nystrom": {
        FINE_TUNED: (91.4, 88.1, 88.7, 86.3, 80.9, 82.2, 93.2),
        LONGER: (91.4, 87.5, 88.7, 86.3, 80.9, 81.4, 93.0),
    },
}


def published(attention: str, task: str) -> dict[str, float]:
    """Source -> score in per cent; empty where unknown.

    `task` may be "average", of the LRA; a subset of GLUE; or "imdb", on sub-words.
    """
    tables = (((*LRA, "average"), PUBLISHED), (TEXTS, TABLE2))
    rows = {
        source: dict(zip(names, row, strict=True))
        for names, table in tables
        for source, row in table.get(attention, {}).items()
    }
    return {source: row[task] for source, row in rows.items() if task in row}

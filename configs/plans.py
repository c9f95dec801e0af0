"""Named sweeps: attentions, changed options and tasks.

    python scripts/sweep.py --plan=table3 --workdir=DIR
        [--preset=quick] [--tasks=listops]

Whatever a variant does not name is the task's preset. The first variant runs on all
tasks with one seed before the second, and all of them before the second seed, so that
an unfinished sweep compares as much as it can.

A task is a config file, with presets as in "glue:mrpc". A variant may have `presets` of
its own, and `init_from`: the presets of the run whose best weights it starts from.
"""

from typing import Any

Variants = tuple[dict[str, Any], ...]


def _attentions(*names: str) -> Variants:
    """A variant for each attention."""
    return tuple({"attention.name": name} for name in names)


def _nystrom(option: str, *values: Any) -> Variants:
    """A variant of Nyström attention for each value of an option."""
    return tuple(
        {"attention.name": "nystrom", f"attention.{option}": value} for value in values
    )


def _recall(attention: str, option: str | None = None) -> Variants:
    """A variant for each of three numbers of pairs, and of three sizes if it has one.

    option: the attention's option that is its size.
    """
    sizes: list[dict[str, Any]] = [{}]
    if option:
        sizes = [{f"attention.{option}": size} for size in (4, 16, 64)]
    return tuple(
        {"attention.name": attention, "task.num_pairs": num_pairs, **size}
        for num_pairs in (4, 16, 64)
        for size in sizes
    )


def _stages(attention: str) -> Variants:
    """Pre-training, fine-tuning with and without it, and training as long as both."""
    name = {"attention.name": attention}
    return (
        {**name, "presets": "pretrain"},
        {**name, "presets": "finetune"},
        {**name, "presets": "finetune", "init_from": "pretrain"},
        {**name, "presets": "scratch_matched"},
    )


# What else may explain a difference between Nyström attention and exact attention. Only
# softmax drops weights; only nystrom has a convolution of V. With a landmark for each
# token it is exact attention, and keeps the convolution: 4,096 are as many for all
# tasks but Path-X. Where there is no attention a convolution as wide stands in front of
# the projection, with a kernel for each channel and not for each head.
SOFTMAX_WITHOUT_DROPOUT = {"attention.name": "softmax", "attention.dropout_rate": 0.0}
EXACT_WITH_CONVOLUTION = {"attention.name": "nystrom", "attention.num_landmarks": 4_096}
CONVOLUTION_ALONE = {"attention.name": "identity", "model.short_conv": 35}

# The rows of the paper's Table 2: Nyström attention, BERT, and 1,024 tokens.
TABLE2_ROWS: Variants = (
    {"attention.name": "nystrom"},
    {"attention.name": "softmax"},
    {"attention.name": "nystrom", "presets": "seq1024"},
)


def _search(row: dict[str, Any]) -> Variants:
    """A variant of a row for each batch size and learning rate of MRPC's search."""
    return tuple(
        {**row, "train.batch_size": batch_size, "optimizer.learning_rate": rate}
        for batch_size in (8, 16, 32)
        for rate in (2e-5, 3e-5, 4e-5, 5e-5)
    )


# The paper's Table 3. The presets have its 256 dimensions of Linformer and features of
# Performer, and its 2 hashes of Reformer. It states no number of landmarks for this
# table: 64 is that of its supplement and of its code's instructions; the code's config
# has 32, 64, 128 and 256.
TABLE3 = {
    "tasks": ("listops", "text", "retrieval", "image", "pathfinder"),
    "seeds": 3,
    "variants": _attentions("nystrom", "softmax", "linformer", "performer", "reformer"),
}

PLANS: dict[str, dict[str, Any]] = {
    "table3": TABLE3,
    # The paper's Table 2: fine-tuning, each row from a pre-training run of its own, as
    # in --config.train.init_from=runs/bert/{attention}-{max_length}, and all from one
    # --config.task.tokenizer=FILE.
    "table2": {
        "tasks": (
            "glue",
            "glue:mrpc",
            "glue:qnli",
            "glue:qqp",
            "glue:mnli",
            "text:subwords",
        ),
        "seeds": 1,
        "variants": TABLE2_ROWS,
    },
    # MRPC's cells of Table 2: of each row's twelve runs the best on validation counts.
    "mrpc_search": {
        "tasks": ("glue:mrpc",),
        "seeds": 1,
        "variants": tuple(run for row in TABLE2_ROWS for run in _search(row)),
    },
    # How many landmarks it takes: the presets' 64, and around it.
    "landmarks": {
        "tasks": ("listops", "text"),
        "seeds": 3,
        "variants": (
            *_nystrom("num_landmarks", 64),
            *_attentions("softmax"),
            *_nystrom("num_landmarks", 16, 256, 32, 128),
        ),
    },
    # Every attention on short expressions: minutes a run on two CPU cores.
    "quick": {
        "tasks": ("listops",),
        "preset": "quick",
        "seeds": 3,
        "variants": (
            *_attentions("nystrom", "softmax", "identity"),
            *_attentions("linformer", "performer", "reformer"),
            *_nystrom("num_landmarks", 3, 12, 48),
            *_nystrom("conv_kernel_size", 0),
            *_attentions("longformer", "linear", "bigbird", "efficient"),
            # 48 landmarks, above, are exact attention with the convolution.
            SOFTMAX_WITHOUT_DROPOUT,
            CONVOLUTION_ALONE,
        ),
    },
    # Rows that belong beside those of table3 or, with --preset=quick, of other tasks.
    "equal_footing": {
        "tasks": ("listops", "text"),
        "seeds": 3,
        "variants": (
            SOFTMAX_WITHOUT_DROPOUT,
            EXACT_WITH_CONVOLUTION,
            *_nystrom("conv_kernel_size", 0),
            CONVOLUTION_ALONE,
        ),
    },
    # How many pairs of keys and values each attention finds again, by its size: 66
    # settings, about a minute a run on a CPU core.
    "recall": {
        "tasks": ("recall",),
        "preset": "quick",
        "seeds": 3,
        "variants": (
            *_recall("softmax"),
            *_recall("nystrom", "num_landmarks"),
            *_recall("linear"),
            *_recall("identity"),
            *_recall("performer", "num_features"),
            *_recall("linformer", "projection_dim"),
            *_recall("reformer", "bucket_size"),
            *_recall("longformer", "window"),
            *_recall("bigbird", "block_size"),
            *_recall("efficient"),
        ),
    },
    # One thing is changed at a time. The first two have the convolution of V and do not
    # have it; one of them is the preset itself.
    "ablations": {
        "tasks": ("listops", "image"),
        "seeds": 3,
        "variants": (
            *_nystrom("conv_kernel_size", 35, 0),
            *_nystrom("landmarks", "random", "kmeans"),
            *_nystrom("landmark_padding", "count"),
            *_nystrom("pinv", "identity", "exact"),  # the last takes long on a GPU
        ),
    },
    # What training on a task's own inputs first is worth: configs/self_pretraining.py.
    "self_pretraining": {
        **TABLE3,
        "variants": (*_stages("nystrom"), *_stages("softmax"), *_stages("identity")),
    },
}

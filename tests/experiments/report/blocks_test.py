"""What a block says below its table."""

import numpy as np

from nystromformer.experiments.report.blocks import describe
from nystromformer.training import checkpoint


def test_describe_says_of_which_commits_and_devices_runs_are(three):
    other = {"device": "1 × H200", "commit": 40 * "a" + "+"}
    three.add("linear,quick", 0.5, result=other)
    text = describe(three.read())
    assert (
        "The runs are of 2 commits, which alone may change numbers: "
        "c0ffee (3: nystrom, softmax); aaaaaaaaa+ (1: linear)."
    ) in text
    assert "The runs are of 2 devices, which" in text
    assert "1 × H200 (1: linear)." in text


def test_describe_names_the_versions_in_which_runs_differ_and_no_others(three):
    assert "versions" not in describe(three.read())
    older = {"jax": "0.10.2", "numpy": "2.4.6", "XLA_FLAGS": "none"}
    newer = {"jax": "0.11.2", "numpy": "2.4.6", "XLA_FLAGS": "--xla_fast"}
    three.add("linear,quick", 0.5, result={"versions": older})
    three.add("identity,quick", 0.5, result={"versions": newer})
    assert (
        "The runs are of 2 sets of versions, which alone may change numbers: "
        "jax 0.10.2, XLA_FLAGS none (1: linear); jax 0.11.2, XLA_FLAGS --xla_fast "
        "(1: identity); not recorded (3: nystrom, softmax)."
    ) in describe(three.read())


def test_describe_says_of_which_tasks_are_the_runs_of_a_commit(three):
    for attention in ("linear", "nystrom"):
        other = {"commit": 40 * "a"}
        three.add(f"{attention},quick", 0.5, task="image", result=other)
    text = describe(three.read())
    assert (
        "c0ffee (3 of listops: nystrom, softmax); "
        "aaaaaaaaa (2 of image: nystrom, linear)."
    ) in text


def test_describe_says_where_a_commit_is_not_known(three):
    three.add("linear,quick", 0.5, result={"commit": None})
    parts = "Commit: c0ffee (3: nystrom, softmax); not recorded (1: linear)."
    assert parts in describe(three.read())


def test_describe_says_of_which_commit_a_run_without_a_result_is(three):
    stopped = three.add("linear,quick")
    three.add("identity,quick", steps=())  # planned
    parts = "Commit: c0ffee (3: nystrom, softmax); not recorded (1: linear)."
    assert parts in describe(three.read())
    weights = {"kernel": np.zeros(3)}
    for step, letter in ((9, "b"), (50, "a")):
        sessions = [{"commit": 40 * letter, "device": "CPU, 2 cores"}]
        checkpoint.save_step(stopped, step, weights, {"sessions": sessions})
    damaged = stopped / "checkpoints/100/meta"
    damaged.mkdir(parents=True)
    (damaged / "metadata").write_text('{"meta": {"sess')
    text = describe(three.read())
    assert "c0ffee (3: nystrom, softmax); aaaaaaaaa (1: linear)" in text
    assert "Device: CPU, 2 cores." in text


def test_describe_says_the_preset_that_sets_of_glue_share(runs):
    for subset in ("mrpc", "qnli"):
        runs.add(f"linear,quick,{subset}", 0.5, task="glue")
    assert "All have preset=quick. " in describe(runs.read())


def test_describe_says_what_all_runs_share_without_the_path_of_a_folder(runs):
    for attention in ("nystrom", "linear"):
        runs.add(f"{attention},quick", 0.5, train__init_from="/home/me/source")
    text = describe(runs.read())
    assert "All have preset=quick, train.init_from=source. " in text

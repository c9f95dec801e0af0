"""scripts/speed.py: which tables are measured, and which are left out."""

import shlex

from lra_tasks import LRA


def planned(commands, out, *flags):
    """The commands that it would run, by the folder that each writes."""
    done = commands.run("speed.py", f"--out={out}", "--dry_run", *flags)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "benchmark.py" in line]
    words = [shlex.split(line) for line in lines]
    return {word[2].removeprefix(f"--out={out}/"): word[3:] for word in words}


def test_speed_plans_a_table_for_each_task_and_dtype(commands, tmp_path):
    tables = planned(commands, tmp_path, "--peers")
    names = [f"{x}_{y}" for x in ("attention", *LRA) for y in ("float32", "bfloat16")]
    assert list(tables) == [f"{name}.unfinished" for name in names]

    alone = tables["attention_bfloat16.unfinished"]
    assert {"--dtype=bfloat16", "--option=nystrom.conv_kernel_size=0"} <= set(alone)
    assert "--train_step" not in alone
    step = tables["text_float32.unfinished"]
    assert {"--dtype=float32", "--train_step", "--task=text", "--peers"} <= set(step)


def test_speed_leaves_out_what_is_complete(commands, tmp_path):
    complete = tmp_path / "text_float32"
    complete.mkdir()
    (complete / "benchmark.json").touch()
    (tmp_path / "image_float32").mkdir()  # holds no result
    tables = planned(commands, tmp_path)
    assert "text_float32.unfinished" not in tables
    assert "image_float32.unfinished" in tables

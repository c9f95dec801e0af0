"""scripts/speed.py measures the tables that are not yet complete."""

import shlex

from lra_tasks import LRA


def plan_tables(commands, out, *flags):
    """The flags of the benchmark that would write each table, by its folder."""
    done = commands.run("speed.py", f"--out={out}", "--dry_run", *flags)
    assert done.returncode == 0, done.stderr
    tables = {}
    for line in done.stdout.splitlines():
        if "benchmark.py" in line:
            _, _, out_flag, *benchmark_flags = shlex.split(line)
            tables[out_flag.removeprefix(f"--out={out}/")] = set(benchmark_flags)
    return tables


def test_speed_plans_a_table_for_each_task_and_dtype(commands, tmp_path):
    tables = plan_tables(commands, tmp_path, "--peers")
    names = []
    for subject in ("attention", *LRA):
        names.append(f"{subject}_float32.unfinished")
        names.append(f"{subject}_bfloat16.unfinished")
    assert list(tables) == names

    flags = tables["attention_bfloat16.unfinished"]
    assert flags >= {"--dtype=bfloat16", "--option=nystrom.conv_kernel_size=0"}
    assert "--train_step" not in flags
    flags = tables["text_float32.unfinished"]
    assert flags >= {"--dtype=float32", "--train_step", "--task=text", "--peers"}


def test_speed_leaves_out_what_is_complete(commands, tmp_path):
    complete_table = tmp_path / "text_float32"
    complete_table.mkdir()
    (complete_table / "benchmark.json").touch()
    # This folder is empty.
    other_folder = tmp_path / "image_float32"
    other_folder.mkdir()
    tables = plan_tables(commands, tmp_path)
    assert "text_float32.unfinished" not in tables
    assert "image_float32.unfinished" in tables

    (other_folder / "notes.txt").touch()
    done = commands.run("speed.py", f"--out={tmp_path}", "--dry_run")
    assert f"{other_folder} has no benchmark.json" in done.stderr
    assert (done.returncode, done.stdout) == (2, "")

"""scripts/speed.py measures the tables that are not yet complete."""

import itertools
import shlex
import shutil

from lra_tasks import LRA
from tests.commands import ROOT

# Stands for benchmark.py, which takes minutes: it writes a table, but none of Text.
TABLE = """
import sys
from pathlib import Path

flags = dict(word.partition("=")[::2] for word in sys.argv[1:])
folder = Path(flags["--out"])
folder.mkdir(parents=True)
(folder / "benchmark.md").touch()
if flags.get("--task") == "text":
    sys.exit("error: no memory")
(folder / "benchmark.json").touch()
"""


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

    assert settings_of(tables["attention_bfloat16.unfinished"]) == {
        "--dtype=bfloat16",
        "--batch_size=2",
        "--num_heads=8",
        "--head_dim=64",
        "--option=nystrom.conv_kernel_size=0",
        "--peers",
    }
    assert settings_of(tables["text_float32.unfinished"]) == {
        "--dtype=float32",
        "--train_step",
        "--task=text",
        "--option=softmax.dropout_rate=0.0",
        "--peers",
    }


def settings_of(flags):
    """All flags but the attentions, of which there are several."""
    attentions = {flag for flag in flags if flag.startswith("--attention=")}
    assert len(attentions) > 1
    return flags - attentions


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


def test_speed_stops_at_a_table_that_fails_and_keeps_the_complete_ones(
    commands, tmp_path
):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(ROOT / "scripts" / "speed.py", scripts)
    (scripts / "benchmark.py").write_text(TABLE)
    out = tmp_path / "out"
    done = commands.run(str(scripts / "speed.py"), f"--out={out}")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: no memory",
        "error: the table text_float32 failed; its error stands above. The same "
        "command goes on with this table",
    ]

    complete = itertools.product(("attention", "listops"), ("float32", "bfloat16"))
    names = {f"{subject}_{dtype}" for subject, dtype in complete}
    folders = {path.name for path in out.iterdir()}
    assert folders == {*names, "text_float32.unfinished"}
    assert all((out / name / "benchmark.json").exists() for name in names)

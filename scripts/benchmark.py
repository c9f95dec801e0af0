"""Measures time, memory and operations of every attention, as in the paper's Table 1.

python scripts/benchmark.py --out=DIR
python scripts/benchmark.py --out=DIR --train_step

writes DIR/README.md, DIR/benchmark.json and, for attentions, a figure. --train_step
measures whole training steps of the tasks' paper presets, on random examples or, with
--data_dir, on the tasks' own. --peers adds PyTorch's attentions in the same rounds. A
program that exceeds the memory budget is compiled but not run.
"""

from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.config import DTYPES
from nystromformer.experiments import cli
from nystromformer.experiments.bench.benchmark import benchmark

flags.DEFINE_string("out", None, "folder to write", required=True)
flags.DEFINE_multi_string("attention", None, "NAME or NAME-SIZE; default: all")
flags.DEFINE_multi_string("option", [], "ATTENTION.OPTION=VALUE")
flags.DEFINE_multi_string("load", [], "module that registers attentions")
flags.DEFINE_multi_integer("length", None, "sequence length in tokens", 1)
flags.DEFINE_integer("batch_size", None, "default: 1, or the task's", 1)
flags.DEFINE_integer("num_heads", 2, "heads of an attention", 1)
flags.DEFINE_integer("head_dim", 32, "dimensions of a head", 1)
flags.DEFINE_enum("dtype", "float32", DTYPES, "dtype of the inputs or the model")
flags.DEFINE_float("memory_gb", None, "budget in 10⁹ bytes; default 80 % of all", 0)
flags.DEFINE_integer("repeats", 7, "rounds of measurements", 7)
flags.DEFINE_bool("train_step", False, "measure whole training steps")
flags.DEFINE_multi_enum("task", [*LRA], [*TASKS], "with --train_step: task")
flags.DEFINE_multi_integer(
    "parts", [1], "with --train_step: grad_accum_steps and length_buckets", 1
)
flags.DEFINE_string("data_dir", None, "with --train_step: folder of the tasks' data")
flags.DEFINE_bool("peers", False, "measure PyTorch's attentions, too")

if __name__ == "__main__":
    cli.run(lambda: benchmark(flags.FLAGS))

"""Time, memory and work of every attention, as Table 1 of the paper, on this machine.

python scripts/benchmark.py --out=DIR
python scripts/benchmark.py --out=DIR --train_step
python scripts/benchmark.py --out=DIR --compile_for=h200 --compilers=FOLDER

writes DIR/README.md, benchmark.json and, of attentions, a figure. With --train_step it
measures whole train steps of the tasks' paper presets, on made-up examples or, with
--data_dir, on the tasks' own; --peers adds PyTorch's in the same rounds. What does not
fit the memory budget is compiled, not run. With --compile_for nothing is measured, but
estimated from what a compiler makes for a device that is not there.
"""

from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.config import DTYPES
from nystromformer.lab import cli
from nystromformer.lab.bench.benchmark import benchmark
from nystromformer.lab.bench.targets import TARGETS

flags.DEFINE_string("out", None, "the folder to write", required=True)
flags.DEFINE_multi_string("attention", None, "NAME or NAME-SIZE; repeat; default all")
flags.DEFINE_multi_string("option", [], "ATTENTION.OPTION=VALUE; repeat")
flags.DEFINE_multi_string("load", [], "a module that registers attentions; repeat")
flags.DEFINE_multi_integer("length", None, "tokens; repeat", 1)
flags.DEFINE_integer("batch_size", None, "default 1, or the task's", 1)
flags.DEFINE_integer("num_heads", 2, "of an attention", 1)
flags.DEFINE_integer("head_dim", 32, "of an attention", 1)
flags.DEFINE_enum("dtype", "float32", DTYPES, "of inputs, or of the model")
flags.DEFINE_float("memory_gb", None, "10⁹ bytes for a program; default 80 % of all", 0)
flags.DEFINE_integer("repeats", 7, "rounds", 7)
flags.DEFINE_bool("train_step", False, "whole train steps of tasks")
flags.DEFINE_multi_enum("task", [*LRA], [*TASKS], "with --train_step; repeat")
flags.DEFINE_multi_integer(
    "parts", [1], "micro_batches, and length_buckets, of a train step; repeat", 1
)
flags.DEFINE_string("data_dir", None, "with --train_step: draw from the tasks' data")
flags.DEFINE_bool("peers", False, "PyTorch's beside ours")
flags.DEFINE_enum("compile_for", None, [*TARGETS], "estimate for such a device")
flags.DEFINE_string("compilers", None, "the folder of the compilers for it")

if __name__ == "__main__":
    cli.run(lambda: benchmark(flags.FLAGS))

"""Every attention beside exact softmax attention: parameters, error, memory.

python scripts/attention_table.py --out=results/attentions.md
"""

from pathlib import Path

from absl import flags

from nystromformer.attention import ATTENTIONS
from nystromformer.lab import cli
from nystromformer.lab.bench.comparison import write_comparison

_LENGTHS = flags.DEFINE_multi_integer("length", [2048, 8192], "columns", 1)
_ATTENTIONS = flags.DEFINE_multi_enum("attention", [*ATTENTIONS], ATTENTIONS, "rows")
_OUT = flags.DEFINE_string("out", None, "the Markdown file to write", required=True)

if __name__ == "__main__":
    cli.run(
        lambda: write_comparison(
            Path(str(_OUT.value)).expanduser(), _ATTENTIONS.value, _LENGTHS.value
        )
    )

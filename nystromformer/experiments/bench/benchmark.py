"""The benchmark: the programs of each length or task take turns."""

import importlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from nystromformer.config import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.bench import summary
from nystromformer.experiments.bench.measure import Program, measure
from nystromformer.experiments.plotting import save_figure

PAGE, FILE = "README.md", "benchmark.json"


def write_benchmark(
    groups: Iterable[list[Program]], out: Path, rounds: int, torch: Any = None
) -> None:
    """Measures groups of programs, and writes JSON, page and figure after each.

    torch: the module `torch_baselines`, or None.
    """
    made_by = provenance.source()
    made_by["versions"] |= torch.VERSIONS if torch else {}
    rows: list[dict[str, Any]] = []
    for programs in groups:
        markdown.open_folder(out, FILE)
        new = measure(programs, rounds)
        print(*summary.tables(new), sep="\n", flush=True)
        rows += new
        lines = [*summary.tables(rows), summary.NOTES]
        if "task" not in rows[0]["key"]:
            save_figure(summary.draw_curves(rows), out / "attention")
            lines.insert(0, "![Time and memory against the length](attention.png)\n")
        (out / FILE).write_text(json.dumps({**made_by, "rows": rows}, indent=1))
        (out / PAGE).write_text(markdown.page("Benchmark", made_by, lines))


def load_torch() -> Any:
    """The module `torch_baselines`; ConfigError where PyTorch cannot stand beside."""
    # Else JAX takes most of an accelerator's memory at once and leaves torch none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        name = "nystromformer.experiments.bench.torch_baselines"
        baselines = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--peers needs {error.name}: pip install it") from error
    if baselines.DEVICE == "cpu" != jax.default_backend():
        raise ConfigError("--peers: JAX has an accelerator and PyTorch has none")
    return baselines

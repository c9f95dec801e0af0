"""Writing a run to a folder that can be given away: weights, config and model card."""

import contextlib
from pathlib import Path
from typing import Any

from etils import epath
from tokenizers import Tokenizer, processors

from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary
from lra_tasks.tables import join_names
from nystromformer.errors import ConfigError, PretrainedError
from nystromformer.experiments import markdown
from nystromformer.experiments.provenance import hide_folders
from nystromformer.experiments.run import summarize
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.huggingface.export import save_pretrained
from nystromformer.run_files import (
    CONFIG_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    WEIGHTS_SHA256,
    write_bytes,
    write_json,
    write_text,
)
from nystromformer.training.checkpoint import weights_sha256, write_weights_file

CARD_FILE = "README.md"
OWN_FORMAT = "nystromformer"
FORMATS = (OWN_FORMAT, "transformers")
# How the model of a card is used.
OWN_USE = """from nystromformer import load_run

run = load_run("FOLDER")  # this folder"""
LABELS = "print(run.predict(texts).labels)"
TRANSFORMERS_USE = """from transformers import {name}

model = {name}.from_pretrained("FOLDER")  # this folder"""
# The order of what a result says about its origin.
ORIGIN = ("command", "commit", "device", "versions")


def export_run(run: TrainedRun, folder: epath.Path, out: Path, layout: str) -> None:
    """Writes the best weights of a run, with what reading them takes, and a model card.

    Args:
      run: the run.
      folder: the folder that it was loaded from.
      out: the folder to write, new or empty.
      layout: "nystromformer", which `load_run` reads, or "transformers".

    Raises:
      ConfigError: if the folder is not empty, or transformers has no such model.
      OSError: if the disk is full; the folder is then empty.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out={out} holds files: name a new or empty folder")
    make_card(run, use="")  # What a result lacks shows before anything is written.
    try:
        _write(run, folder, out, layout)
    except BaseException:
        # Half a model would be taken for one, and its folder refused by the next try.
        with contextlib.suppress(OSError):
            for file in out.glob("*"):
                file.unlink()
        raise


def _write(run: TrainedRun, folder: epath.Path, out: Path, layout: str) -> None:
    """Writes weights, config, tokenizer and card; on an error some of them."""
    tokenizer_file = folder / TOKENIZER_FILE
    if layout == OWN_FORMAT:
        use = _write_own(run, out)
        if tokenizer_file.exists():
            write_bytes(out / TOKENIZER_FILE, tokenizer_file.read_bytes())
    else:
        use = _write_transformers(run, out)
        if tokenizer_file.exists():
            _write_tokenizer(tokenizer_file, out, run.task.max_length)
    write_text(out / CARD_FILE, make_card(run, use))


def _is_classifier(run: TrainedRun) -> bool:
    return run.config.objective.name == "classification"


def _write_own(run: TrainedRun, out: Path) -> str:
    """Writes the files of a run, and returns code that uses them."""
    out.mkdir(parents=True, exist_ok=True)
    write_weights_file(out / WEIGHTS_FILE, run.weights)
    config = run.config.to_mapping()
    config[WEIGHTS_SHA256] = weights_sha256(run.weights)
    write_json(out / CONFIG_FILE, config)
    if run.result is not None:
        write_json(out / RESULT_FILE, run.result)
    return f"{OWN_USE}\n{LABELS}" if _is_classifier(run) else OWN_USE


def _write_transformers(run: TrainedRun, out: Path) -> str:
    """Writes the files of transformers, and returns code that uses them."""
    try:
        name = save_pretrained(
            out,
            run.model,
            run.experiment.encoder_config,
            class_names=run.task.class_names,
            pad_token_id=run.task.special_tokens[0] if run.task.special_tokens else 0,
        )
    except PretrainedError as error:
        raise ConfigError(
            f"--format=transformers: {error}; without this flag the folder is for "
            "load_run"
        ) from error
    return TRANSFORMERS_USE.format(name=name)


def _write_tokenizer(file: epath.Path, out: Path, max_length: int) -> None:
    """Writes the tokenizer so that transformers makes the rows that tasks make."""
    tokenizer = Tokenizer.from_buffer(file.read_bytes())
    vocabulary = Vocabulary(str(file))
    pad, unk, cls, sep, mask = map(tokenizer.id_to_token, vocabulary.special)
    if tokenizer.post_processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(cls, vocabulary.cls), (sep, vocabulary.sep)],
        )
    write_text(out / TOKENIZER_FILE, tokenizer.to_str())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": pad,
        "unk_token": unk,
        "cls_token": cls,
        "sep_token": sep,
        "mask_token": mask,
    }
    write_json(out / "tokenizer_config.json", settings)


def make_card(run: TrainedRun, use: str) -> str:
    """Returns the model card of a run: what it is, its scores, and where it is from.

    Args:
      run: the run.
      use: code that uses its folder.
    """
    config = run.config
    task = run.task
    facts = [
        f"- Task: {task.name}. {task.description}",
        f"- Model: {config.attention}, {run.experiment.num_params:,} parameters, at "
        f"most {task.max_length:,} tokens",
        f"- Weights: sha256 {weights_sha256(run.weights)}",
    ]
    if _is_classifier(run):
        names = markdown.escape(join_names(task.class_names))
        facts.append(f"- Classes: {names}")
    if config.load:
        names = [Path(module).name for module in config.load]
        facts.append(f"- Modules that it needs: {', '.join(names)}")

    lines = [*facts, *_describe_training(run.result), "", "## Use", ""]
    lines += ["```python", use, "```"]
    head = ["---", "library_name: nystromformer-jax", "---", ""]
    title = f"# {task.name} with {config.attention}"
    return "\n".join([*head, title, "", *lines]) + "\n"


def _describe_training(result: dict[str, Any] | None) -> list[str]:
    """The data, the origin and the scores of a finished run."""
    if result is None:
        return ["- Not trained to an end here: imported, or of a run that goes on"]
    lines = [
        f"- Data, {split}: sha256 {x}" for split, x in result["data_sha256"].items()
    ]
    origin = {name: result[name] for name in ORIGIN}
    origin["command"] = hide_folders(result["command"])  # Others have no such folders.
    return [
        *lines,
        *markdown.format_origin(origin),
        "",
        "## Scores, beside those of fixed rules",
        "",
        "```text",
        summarize(result),
        "```",
    ]

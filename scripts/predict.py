"""Classifies texts by the best weights of a run.

    python scripts/predict.py --workdir=DIR --input=texts.csv > classes.csv
    echo "[MAX 3 [MIN 8 5 ] ]" | python scripts/predict.py --workdir=DIR

--input is a CSV or TSV file whose first line names the columns, a JSONL file with an
object a line, or any other file, which has a text a line. Its ending says which, or
--reads. Only a CSV file may quote its fields.
What is piped in has a text a line, unless --reads says otherwise. For pictures a text
is the path of one. --columns names the column of the texts, or two columns where an
example has two texts.

What comes out is CSV, or JSONL if that came in, or as --writes says. It has for each
text, in order, the number of its class (label), the name of the class (class_name) and
its probability. Stderr says how many texts were empty or cut.
"""

import start

start.prepare()

import contextlib
import csv
import io
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from lra_tasks.errors import DataError
from lra_tasks.tables import has_too_many, split_csv, split_tsv
from lra_tasks.task import Task
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.trained_run import Prediction, TrainedRun, load_run

# By the ending of --input; all others have a text a line.
KIND_OF_ENDING = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
OUTPUT_COLUMNS = ("label", "class_name", "probability")

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_INPUT = flags.DEFINE_string("input", "-", "file of texts; -: what is piped in")
_COLUMNS = flags.DEFINE_list("columns", None, "of the texts in a table or JSONL")
_READS = flags.DEFINE_enum(
    "reads", None, ["csv", "tsv", "jsonl", "lines"], "what --input is"
)
_WRITES = flags.DEFINE_enum("writes", None, ["csv", "jsonl"], "what comes out")


def main() -> None:
    """Reads the texts, and prints their classes."""
    run = load_run(str(_WORKDIR.value))
    check_classifies_texts(run)
    kind = _READS.value or KIND_OF_ENDING.get(Path(_INPUT.value).suffix, "lines")
    examples = read_examples(kind, run.task)
    kind_of_output = _WRITES.value or ("jsonl" if kind == "jsonl" else "csv")
    write_prediction(predict(run, examples), kind_of_output)


def check_classifies_texts(run: TrainedRun) -> None:
    """Raises ConfigError unless a run gives each text a class."""
    try:
        run.check_has_classes()
    except ValueError as error:
        raise ConfigError(f"{_WORKDIR.value}: {error}") from error
    if run.task.num_labels:
        raise ConfigError(
            f"{run.task.name} labels the tokens of a text, not the text: use load_run"
        )


def read_examples(kind: str, task: Task) -> list[tuple[str, ...]]:
    """Reads the texts of each example.

    Raises:
      DataError: for a file that is not of that kind, or not UTF-8, and for one without
        --reads that is JSON, or whose first line is that of a table or JSONL.
      ConfigError: for another number of columns than an example has texts.
    """
    num_texts = max(task.num_inputs, task.num_texts)
    columns = [getattr(task, "text_column", "text")]
    if _COLUMNS.value:
        columns = _COLUMNS.value
    if len(columns) != num_texts or (num_texts == 2 and kind == "lines"):
        raise ConfigError(
            f"an example of {task.name} has {num_texts} texts: name as many columns of "
            "a CSV, TSV or JSONL file, as in --columns=FIRST,SECOND"
        )
    try:
        content = read_input()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name_input()} is not UTF-8 text ({error.reason}): save the texts as "
            "UTF-8; for pictures, --input is a file of their paths, one a line"
        ) from None
    if kind == "lines" and _READS.value is None:
        check_is_lines(content, columns[0])
    return [tuple(texts) for texts in READERS[kind](content, columns)]


def read_input() -> str:
    """Returns the whole input."""
    if _INPUT.value == "-":
        if sys.stdin.isatty():
            note("reading from the terminal, until Ctrl-D on a line of its own")
        content = sys.stdin.buffer.read()
    else:
        content = Path(_INPUT.value).expanduser().read_bytes()
    return content.decode("utf-8-sig")


def name_input() -> str:
    """Returns the name of the input in messages."""
    return "standard input" if _INPUT.value == "-" else str(_INPUT.value)


def check_is_lines(content: str, column: str) -> None:
    """Raises DataError for JSON, and a table or JSONL with that column, as piped in."""
    first_line = content.partition("\n")[0].strip()
    kind = None
    if first_line.startswith("{") and f'"{column}"' in first_line:
        kind = "jsonl"
    elif column in first_line.replace('"', "").split(","):
        kind = "csv"
    elif column in first_line.split("\t"):
        kind = "tsv"
    if kind:
        raise DataError(
            f"{name_input()} looks like {kind}: add --reads={kind}, or --reads=lines "
            "if each line is a text"
        )
    if Path(_INPUT.value).suffix == ".json":
        raise DataError(
            f"{name_input()} is JSON: write it as JSONL, an object a line, and name it "
            "NAME.jsonl"
        )


def read_lines(content: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yields each line as the text of an example."""
    for line in io.StringIO(content):
        yield [line.rstrip("\r\n")]


def read_csv(content: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yields the columns of each line of a CSV file that is not blank."""
    return read_table(split_csv(content, name_input()), columns)


def read_tsv(content: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yields the columns of each line of a TSV file that is not blank."""
    return read_table(split_tsv(content), columns)


def read_table(
    lines: Iterator[list[str]], columns: Sequence[str]
) -> Iterator[list[str]]:
    """Yields the columns of each line; the first names them."""
    header = next(lines, [])
    missing = set(columns) - set(header)
    if missing:
        raise DataError(
            f"{name_input()} has no column {', '.join(sorted(missing))}: its first "
            "line names the columns; --columns names those of the texts, and "
            "--reads=lines takes a text a line"
        )
    for number, fields in enumerate(lines, start=1):
        # Of a CSV file, `split_csv` has refused such a line.
        if has_too_many(fields, header):
            raise DataError(
                f"{name_input()}, text {number} has more columns than the first line: "
                "take the tabs out of the texts, or save them as CSV"
            )
        row = dict(zip(header, fields, strict=False))
        yield [row.get(column, "") for column in columns]


def read_jsonl(content: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts of each object."""
    for number, line in enumerate(io.StringIO(content), start=1):
        if not line.strip():
            continue
        texts: list[Any] = []
        with contextlib.suppress(ValueError, TypeError, KeyError):
            texts = [json.loads(line)[column] for column in columns]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{name_input()}, line {number} is no JSON object with a text under "
                f"the key {' and '.join(map(repr, columns))}: --columns names the keys "
                "of the texts"
            )
        yield texts


READERS = {"csv": read_csv, "tsv": read_tsv, "jsonl": read_jsonl, "lines": read_lines}


def predict(run: TrainedRun, examples: Sequence[tuple[str, ...]]) -> Prediction | None:
    """Returns the classes of examples, None without any.

    It notes how many were empty or cut.
    """
    if not examples:
        return None
    inputs: list[Any] = list(examples)
    if len(examples[0]) == 1:
        inputs = [text for (text,) in examples]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        prediction = run.predict(inputs)
    num_empty = sum(not "".join(texts).strip() for texts in examples)
    if num_empty:
        note(f"{num_empty:,} of {len(examples):,} texts are empty")
    for warning in caught:
        note(str(warning.message))
    return prediction


def write_prediction(prediction: Prediction | None, kind: str) -> None:
    """Prints a line for each example: the number of its class, its name, how likely."""
    rows = []
    if prediction is not None:
        for label, name, probabilities in zip(
            prediction.classes.tolist(),
            prediction.labels.tolist(),
            prediction.probabilities,
            strict=True,
        ):
            rows.append((label, name, round(float(probabilities[label]), 6)))

    if kind == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(OUTPUT_COLUMNS)
        writer.writerows(rows)
        return
    for row in rows:
        print(json.dumps(dict(zip(OUTPUT_COLUMNS, row, strict=True))))


def note(text: str) -> None:
    """Prints what a person should know, and no program reads."""
    print(f"note: {text}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)

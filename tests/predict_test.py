"""scripts/predict.py: a file of texts in, their classes out."""

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from etils import epath

import nystromformer
from nystromformer.experiments.export import export_run
from tests.commands import ROOT, refused
from tests.small import untrained

EXPRESSIONS = ["[MAX 3 [MIN 8 5 ] ]", "[SM 1 2 ]", "[MED 4 4 9 ]"]


@pytest.fixture(scope="module")
def workdir(finished):
    workdir, _ = finished
    return workdir


@pytest.fixture(scope="module")
def expected(workdir):
    """What comes out for EXPRESSIONS."""
    prediction = nystromformer.load_run(workdir).predict(EXPRESSIONS)
    return [
        (label, name, pytest.approx(probabilities[label], abs=1e-5))
        for label, name, probabilities in zip(
            prediction.classes.tolist(),
            prediction.labels.tolist(),
            prediction.probabilities,
            strict=True,
        )
    ]


def make_csv(column):
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerows([("id", column), *enumerate(EXPRESSIONS)])
    return stream.getvalue()


FILES = {
    "texts.csv": make_csv("text"),
    "texts.tsv": "".join(f"{x}\t0\r\n" for x in ["text", *EXPRESSIONS]),
    "texts.jsonl": "".join(json.dumps({"text": x}) + "\n" for x in EXPRESSIONS),
    "texts.txt": "\n".join(EXPRESSIONS),
}


def rows_of(out, kind):
    """The lines that were printed, in the types of the prediction."""
    if kind == "jsonl":
        rows = [json.loads(line) for line in out.splitlines()]
    else:
        rows = list(csv.DictReader(io.StringIO(out)))
    return [
        (int(row["label"]), row["class_name"], float(row["probability"]))
        for row in rows
    ]


@pytest.mark.parametrize("name", FILES)
def test_predict_reads_each_kind_of_file(name, commands, workdir, expected, tmp_path):
    (tmp_path / name).write_text(FILES[name])
    flags = (f"--workdir={workdir}", f"--input={tmp_path / name}")
    done = commands.run("predict.py", *flags)
    assert done.returncode == 0, done.stderr
    kind = "jsonl" if name.endswith("jsonl") else "csv"
    assert rows_of(done.stdout, kind) == expected
    assert done.stderr == ""


def test_predict_takes_columns_and_kinds_by_flags(
    commands, workdir, expected, tmp_path
):
    file = tmp_path / "table"
    file.write_text(make_csv("expression"))
    flags = (f"--workdir={workdir}", f"--input={file}", "--reads=csv")
    no_column = "has no column text: its first line names the columns"
    message = refused(commands.run("predict.py", *flags))
    assert f"{file} {no_column}" in message
    piped_in = commands.run("predict.py", flags[0], "--reads=csv")
    assert f"standard input {no_column}" in refused(piped_in)
    flags += ("--columns=expression", "--writes=jsonl")
    done = commands.run("predict.py", *flags)
    assert rows_of(done.stdout, "jsonl") == expected, done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            "[MAX 1 2 ]\n[MAX 3 [MIN 8 5 ]\n",
            "text 2, .* is not one expression",
        ),
        ("a.txt", "[MAX 1 2 ]\n[MAX 1 x ]\n", "text 2: 'x' is not a token of"),
        ("a.txt", "[MAX 1 2 ]\n\n", "text 2 is empty: give it 1 to"),
        ("a.txt", "id,text\n1,[MAX 1 2 ]\n", "a.txt looks like csv: add --reads=csv"),
        ("a.txt", "id\ttext\n1\t[MAX 1 2 ]\n", "looks like tsv: add --reads=tsv"),
        ("a.tsv", "text\n[MAX 1\t2 ]\n", "text 1 has more columns .*: take the tabs"),
        ("a.json", '[{"text": "[MAX 1 2 ]"}]', "a.json is JSON: write it as JSONL, an"),
        ("a.txt", '{"text": "[MAX 1 2 ]"}', "a.txt looks like jsonl: add --reads=j"),
        (
            "a.jsonl",
            '{"text": 3}\n',
            "line 1 is no JSON object with a text under the key 'text'",
        ),
        ("a.png", b"\x89PNG", "is not UTF-8 .*, --input is a file of their paths, one"),
        ("a.csv", 'text\n"[MAX\n', "line 2: unexpected end of data"),
        ("a.csv", '"text\n[MAX\n', "lines 1 to 2: unexpected end of data"),
        ("a.csv", "text\n[MAX 1, 2 ]\n", "line 2 has too many columns: quote a text"),
    ],
)
def test_predict_refuses_what_is_no_text_of_the_task(
    name, content, message, commands, workdir, tmp_path
):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(content)
    flags = (f"--workdir={workdir}", f"--input={tmp_path / name}")
    done = commands.run("predict.py", *flags)
    assert done.stdout == ""
    assert re.search(message, refused(done))


TEXTS = {
    "task": "labelled_texts",
    "task__labels": "ham,spam",
    "task__max_length": 16,
    "model__num_layers": 1,
    "model__model_dim": 8,
}


def test_predict_counts_what_was_cut_or_empty_and_names_the_classes(commands, tmp_path):
    """An empty line is an empty text, so that lines in and out belong together."""
    run = untrained("identity,quick", **TEXTS)
    export_run(run, epath.Path(tmp_path), tmp_path / "out", "nystromformer")
    (tmp_path / "texts").write_text(f"a film\n\n{'long ' * 9}\n\n")
    flags = (f"--workdir={tmp_path / 'out'}", f"--input={tmp_path / 'texts'}")
    done = commands.run("predict.py", *flags)
    labels = [name for _, name, _ in rows_of(done.stdout, "csv")]
    assert len(labels) == 4, done.stderr
    assert set(labels) <= {"ham", "spam"}
    empty, cut = done.stderr.splitlines()
    assert empty == "note: 2 of 4 texts are empty"
    assert cut.startswith("note: 1 of 4 texts are cut: they have more tokens than")


@pytest.mark.parametrize(
    ("arg", "task", "message"),
    [
        ("identity,quick,pretrain", "listops", "out: mlm predicts no classes"),
        ("identity,quick", "corpus", "out: mlm_sop predicts no classes"),
        ("identity,quick", "recall", "recall labels the tokens of a text, not the"),
        ("identity,quick", "retrieval", "an example of retrieval has 2 texts: name"),
    ],
)
def test_predict_refuses_a_run_that_gives_a_text_no_class(
    arg, task, message, commands, tmp_path
):
    changes = {"task__tokenizer": "byte"} if task == "corpus" else {}
    run = untrained(arg, task, model__num_layers=1, **changes)
    export_run(run, epath.Path(tmp_path), tmp_path / "out", "nystromformer")
    (tmp_path / "texts").write_text(EXPRESSIONS[0])
    flags = (f"--workdir={tmp_path / 'out'}", f"--input={tmp_path / 'texts'}")
    assert message in refused(commands.run("predict.py", *flags))


@pytest.mark.slow
def test_predict_says_that_it_waits_for_a_terminal(workdir):
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{EXPRESSIONS[0]}\n\x04".encode())  # \x04 is Ctrl-D.
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/predict.py", f"--workdir={workdir}"],
        stdin=terminal,
        capture_output=True,
        text=True,
        check=True,
    )
    note = "note: reading from the terminal, until Ctrl-D on a line of its own\n"
    assert done.stderr == note
    assert len(rows_of(done.stdout, "csv")) == 1

"""A run's folder: what may live there, and what is noticed of damage."""

import json
import shutil

import pytest
from etils import epath

from nystromformer.config import ConfigError
from nystromformer.experiments.workdir import (
    check_workdir,
    find_folder,
    is_locked,
    lock_workdir,
    open_workdir,
    read_config,
    read_result,
    write_result,
)
from tests.small import make_config

RESULT = {
    "task": "listops",
    "attention": "nystrom",
    "seed": 0,
    "best_step": 40,
    "validation_accuracy": 0.5,
    "test_accuracy": 0.25,
    "test_examples": 50,
    "floors": {"majority class": 0.125},
    "params_sha256": "0" * 64,
}


def begin(workdir):
    """A run that has saved something."""
    open_workdir(workdir, make_config())
    (workdir / "checkpoints" / "20").mkdir(parents=True)
    return workdir


def test_a_name_is_a_folder_or_one_in_a_bucket(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder("~/run") == tmp_path / "run"
    assert str(find_folder("gs://bucket/run")) == "gs://bucket/run"
    for name in ("s3://bucket/run", "gs://bucket", "gs://bucket/", "gs:///run"):
        with pytest.raises(ConfigError, match="is neither a folder nor gs://BUCKET/RU"):
            find_folder(name)


def test_a_new_workdir_gets_the_config_and_one_that_has_begun_keeps_its_own(tmp_path):
    workdir = begin(tmp_path / "new" / "run")
    assert read_config(workdir) == make_config()
    open_workdir(workdir, make_config())
    open_workdir(workdir, make_config(task__data_dir="/moved"))
    with pytest.raises(ConfigError, match=r"train\.seed is 0 there, 7 here"):
        open_workdir(workdir, make_config(train__seed=7))
    with pytest.raises(ConfigError, match=r"attention\.name is 'nystrom' there"):
        open_workdir(workdir, make_config("softmax"))
    assert read_config(workdir) == make_config()


def test_a_tokenizer_counts_by_its_content_wherever_it_lies(tmp_path):
    first, copied, other = (tmp_path / f"{name}.json" for name in "abc")
    for path, text in ((first, "{}"), (copied, "{}"), (other, "[]")):
        path.write_text(text)

    def config(path):
        return make_config("nystrom,subwords", "text", task__tokenizer=str(path))

    open_workdir(tmp_path, config(first))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    open_workdir(tmp_path, config(copied))
    with pytest.raises(ConfigError, match=r"tokenizer\.json' there, '.*c\.json' here"):
        open_workdir(tmp_path, config(other))
    first.write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer\.json' there, '.*a\.json' here"):
        open_workdir(tmp_path, config(first))


def test_another_source_of_the_same_name_is_another_run(tmp_path):
    def config(path):
        return make_config(train__init_from=str(path))

    for place, digest in (("a", "1"), ("b", "2"), ("copy", "1")):
        source = tmp_path / place / "pre"
        source.mkdir(parents=True)
        write_result(source, {**RESULT, "params_sha256": digest})
    run = tmp_path / "run"
    open_workdir(run, config(tmp_path / "a" / "pre"))
    (run / "checkpoints" / "20").mkdir(parents=True)
    open_workdir(run, config(tmp_path / "copy" / "pre"))
    open_workdir(run, config("/moved/pre"))
    shutil.rmtree(tmp_path / "a")
    write_result(run, {**RESULT, "init_from_sha256": "1"})
    for other in (tmp_path / "b" / "pre", "/moved/other"):
        with pytest.raises(ConfigError, match=r"train\.init_from is '.*a/pre' there"):
            open_workdir(run, config(other))


def test_an_option_that_is_a_tuple_is_the_list_that_json_makes_of_it(tmp_path):
    config = make_config("nystrom,quick", task__sizes=(1, 2))
    open_workdir(tmp_path, config)
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "20.safetensors").touch()
    assert check_workdir(tmp_path, config)


def test_a_folder_is_locked_while_a_process_trains_there(tmp_path):
    assert not is_locked(tmp_path)
    with lock_workdir(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_where_nothing_was_saved_another_run_may_begin(tmp_path):
    open_workdir(tmp_path, make_config())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "20.safetensors.tmp").write_bytes(b"of a killed run")
    open_workdir(tmp_path, make_config(train__seed=7))
    assert read_config(tmp_path) == make_config(train__seed=7)


def test_a_config_that_is_broken_or_gone_is_an_error_that_names_the_file(tmp_path):
    path = begin(tmp_path) / "config.json"
    for content, said in (
        ('{"task"', r"config\.json is not valid JSON"),
        ("[" * 100_003, r"config\.json is not valid JSON"),
        ('{"task": {}}', r"config\.json: config\.task\.name is missing"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=said):
            open_workdir(tmp_path, make_config())
    path.unlink()
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json"):
        open_workdir(tmp_path, make_config())
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_a_digit_changed_in_a_finished_run_is_noticed(tmp_path, name):
    open_workdir(tmp_path, make_config())
    (tmp_path / "metrics.jsonl").write_text('{"step": 40, "loss": 2.0}\n')
    assert read_result(tmp_path) is None
    write_result(tmp_path, RESULT)
    assert RESULT.items() <= read_result(tmp_path).items()
    path = tmp_path / name
    path.write_text(path.read_text().replace("40", "41").replace("5000", "5001"))
    with pytest.raises(ConfigError, match=rf"{name} is (damaged|not the one)"):
        read_result(tmp_path)


def test_a_result_may_be_older_and_has_the_metric_that_chose_its_weights(tmp_path):
    losses = {"metric": "loss", "validation_loss": 0.5, "test_loss": 0.25}
    rest = {key: x for key, x in RESULT.items() if not key.endswith("accuracy")}
    for result in (RESULT, rest | losses):
        (tmp_path / "result.json").write_text(json.dumps(result))
        assert read_result(tmp_path) == result
    (tmp_path / "result.json").write_text(json.dumps(rest))
    with pytest.raises(ConfigError, match="is not a result of this program"):
        read_result(tmp_path)


def refuse(*args, **options):
    raise RuntimeError("forbidden\nmore")


def test_what_a_cloud_refuses_is_an_error_of_the_system(tmp_path, monkeypatch):
    bucket = begin(epath.Path(tmp_path / "run"))
    write_result(bucket, RESULT)
    monkeypatch.setattr("nystromformer.training.files.is_local", lambda _: False)
    calls = {
        "read_bytes": lambda: read_config(bucket),
        "write_bytes": lambda: write_result(bucket, {}),
        "exists": lambda: check_workdir(bucket, make_config()),
    }
    for method, call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(type(bucket), method, refuse)
            with pytest.raises(OSError, match=r"/run.*: forbidden: more$"):
                call()

"""One way from a config file to a checked config, for all commands."""

import os

import pytest

from lra_tasks import TASKS
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_file import format_config, load_config
from tests.commands import ROOT

LISTOPS = f"{ROOT}/configs/listops.py"


def test_load_config_parses_changes_as_the_command_line_does():
    changes = {"train.seed": "7", "optimizer.learning_rate": 1, "task.data_dir": None}
    config = load_config(f"{LISTOPS}:softmax,quick", changes)
    assert (config.preset, config.attention.name) == ("quick", "softmax")
    assert config.train.seed == 7
    assert config.optimizer.learning_rate == 1.0
    assert config.task.data_dir is None
    assert config.overrides.keys() == changes.keys()


def test_load_config_takes_no_value_for_what_is_true_or_false():
    file = f"{ROOT}/configs/image.py"
    changes = {"train.flip_horizontal": True, "attention.fused": False}
    config = load_config(file, changes)
    assert config.train.flip_horizontal is True
    assert config.attention.options["fused"] is False


def test_the_word_none_of_a_flag_is_no_value():
    words = dict.fromkeys(
        ("task.source_dir", "task.data_dir", "train.init_from", "model.ignore_id"),
        "None",
    )
    config = load_config(LISTOPS, words)
    groups = config.to_mapping()
    for path in words:
        group, key = path.split(".")
        assert groups[group][key] is None
        assert config.overrides[path] is None


def test_load_config_makes_paths_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {"task.source_dir": "sources", "task.data_dir": "data"}
    config = load_config(LISTOPS, changes, load=("mine.py", "package.module"))
    folder = os.getcwd()
    assert config.task.options["source_dir"] == f"{folder}/sources"
    assert config.task.data_dir == f"{folder}/data"
    assert config.load == [f"{folder}/mine.py", "package.module"]


# A task, and a config file that imports it.
MY_TASK = """
from lra_tasks.listops import ListOps
from lra_tasks.task import register_task

class Short(ListOps):
    name = "imported"

register_task("imported", Short)
"""
MY_CONFIG = """
import my_task
from configs.defaults import make_get_config
from configs.listops import PAPER, QUICK

get_config = make_get_config("imported", PAPER, {"quick": QUICK})
"""


def test_load_config_knows_each_time_that_an_import_registers(tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text(MY_TASK)
    file = tmp_path / "mine.py"
    file.write_text(MY_CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TASKS, "imported", None)  # It goes when the test ends.
    monkeypatch.delitem(TASKS, "imported")
    for seed in (0, 1):
        config = load_config(f"{file}:identity,quick", {"train.seed": seed})
        assert config.load == [str(file)]


def test_load_config_adds_modules_to_those_that_a_file_names(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from configs.listops import get_config as listops\n"
        "def get_config(words=''):\n"
        "    config = listops(words)\n"
        "    config.load = ('package.first',)\n"
        "    return config\n"
    )
    config = load_config(f"{tmp_path}/mine.py", load=("package.second",))
    assert config.load == ["package.first", "package.second"]


def test_another_objective_drops_the_options_of_the_file():
    file = f"{ROOT}/configs/text.py:identity,modern"
    changes = {"objective.name": "classification"}
    objective = load_config(file, changes).objective
    assert (objective.name, objective.options) == ("classification", {})

    changes = {"objective.name": "mlm", "objective.mlm_probability": 0.2}
    objective = load_config(file, changes).objective
    assert (objective.name, objective.options) == ("mlm", {"mlm_probability": 0.2})

    own = load_config(file).objective
    changes = {"objective.name": own.name}
    assert load_config(file, changes).objective == own
    assert own.options["denoising_weight"] == 0.3


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("/no/such.py", {}, "^there is no config file /no/such.py; .* configs/glue.py"),
        (f"{ROOT}/README.md", {}, "^there is no config file .*/README.md; configs are"),
        (f"{ROOT}/configs/x.py", {}, "no config file .*/x.py; configs are .*glue.py"),
        (
            f"{LISTOPS}:nystrm",
            {},
            "^unknown attention or preset 'nystrm'; presets are paper, ",
        ),
        (LISTOPS, {"train.num_steps": "1.5"}, "num_steps=1.5: must be an integer$"),
        (LISTOPS, {"model.dropout_rate": "a"}, "dropout_rate=a: must be a number$"),
        ("listops", {}, "^there is no config file listops: name configs/listops.py$"),
        (LISTOPS, {"train.seed": None}, "seed must be int, got None"),
        (LISTOPS, {"train": True}, "^--config.train is a group: change one of its"),
        (LISTOPS, {"train.seed": True}, "^--config.train.seed needs a value: "),
        (LISTOPS, {"task.data_dir": True}, "^--config.task.data_dir needs a value: "),
        (LISTOPS, {"model.remat": False}, "^--config.model.remat needs a value: "),
        (LISTOPS, {"train.num_step": 1}, 'Did you mean "num_steps" instead of'),
        (
            LISTOPS,
            {"trian.seed": 1},
            r"^no such key in the config: 'trian'\. Did",
        ),
        (
            LISTOPS,
            {"train.colour": 1},
            "no such key in the config: 'colour'; config.train has batch_size, ",
        ),
        (
            LISTOPS,
            {"train.learning_rate": 1},
            "'learning_rate'; there is --config.optimizer.learning_rate$",
        ),
        (
            f"{LISTOPS}:softmax",
            {"attention.num_landmarks": 8},
            "'num_landmarks'; config.attention of softmax has .*dropout_rate, fused",
        ),
        (
            LISTOPS,
            {"attention.by_layer.0": "linear"},
            "^no such key in the config: 'attention.by_layer.0'; change the whole value"
            " of --config.attention.by_layer$",
        ),
        (LISTOPS, {"attention.name.x": 1}, "^no such key .*: 'attention.name.x'; "),
        (LISTOPS, {"train.seed[0]": 1}, r"^no such key .*: 'train.seed\[0\]'; change"),
        (LISTOPS, {"train..seed": 1}, "^no such key in the config: "),
        (LISTOPS, {"train.eval_every": 0}, "eval_every must be at least 1, got 0"),
        (
            f"{LISTOPS}:nystrom,quick",
            {"attention.name": "softmax"},
            "keeps the options of nystrom: .*, --config=.*/listops.py:softmax,quick$",
        ),
    ],
)
def test_load_config_rejects_in_one_line(file, changes, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(file, changes)
    assert "\n" not in str(caught.value)


def test_load_config_takes_none_for_a_number_that_may_be_none():
    file = f"{ROOT}/configs/image.py:quick"
    assert load_config(file).model.ignore_id == 0
    assert load_config(file, {"model.ignore_id": None}).model.ignore_id is None
    assert load_config(file, {"model.ignore_id": 5}).model.ignore_id == 5


def test_load_config_takes_no_function_of_the_file_before():
    load_config(LISTOPS)
    message = "plans.py is no config file: it defines no get_config; configs are .*glue"
    with pytest.raises(ConfigError, match=message):
        load_config(f"{ROOT}/configs/plans.py")


@pytest.mark.parametrize("changes", [{}, {"train.seed": 1}])
@pytest.mark.parametrize("value", ["None", "{'train': {'seed': 0}}"])
def test_load_config_rejects_a_file_that_returns_no_config(tmp_path, value, changes):
    path = tmp_path / "mine.py"
    path.write_text(f"def get_config():\n    return {value}\n")
    message = (
        r"mine\.py is no config file: its get_config returns \w+, not a ConfigDict"
    )
    with pytest.raises(ConfigError, match=message):
        load_config(str(path), changes)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise ValueError('not\\nthis')", "^not this$"),
        ("raise ValueError", "^ValueError$"),
        ("return\\\n 3 + 'a'", r"mine\.py, line 3: unsupported operand type"),
        ("open('/no/such')", "^.Errno 2. No such file or directory: '/no/such'$"),
    ],
)
def test_load_config_says_in_one_line_what_a_config_file_refuses(
    tmp_path, monkeypatch, statement, message
):
    path = tmp_path / "mine.py"
    path.write_text(f"def get_config():\n    {statement}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", str(path)):
        with pytest.raises(ConfigError, match=message):
            load_config(name)


def test_load_config_refuses_words_that_a_config_file_does_not_take(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def get_config():\n    pass\n")
    message = r"mine\.py: get_config\(\) takes 0 positional arguments but 1 was given$"
    with pytest.raises(ConfigError, match=message):
        load_config(f"{path}:quick")


def test_load_config_shows_where_a_config_file_fails(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    ConfigDict().trian.seed = 1\n"
    )
    with pytest.raises(AttributeError, match="trian"):
        load_config(str(path))


def test_format_config_has_a_line_for_each_key():
    config = load_config(f"{LISTOPS}:quick", {"train.seed": 3})
    lines = format_config(config).splitlines()
    assert "config.train.seed = 3" in lines
    assert "config.task.name = 'listops'" in lines
    assert not [line for line in lines if "overrides" in line]

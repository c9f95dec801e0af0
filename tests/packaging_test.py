"""What is installed: the wheel alone, and what its extras bring."""

import itertools
import subprocess
import sys
import tomllib
import zipfile

import pytest

import nystromformer
from tests.commands import ROOT, refused

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(name: str) -> set[str]:
    lines = (ROOT / f"{name}.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_requirements_are_those_of_the_extras():
    extras = PROJECT["optional-dependencies"]
    groups = (PROJECT["dependencies"], extras["train"], extras["report"], extras["hf"])
    assert requirements("requirements") == set(itertools.chain(*groups))
    assert requirements("requirements-dev") == set(extras["dev"])


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("load_run", "trained_run", "train"),
        ("diagnose", "approximation.diagnosis", "train,report"),
    ],
)
def test_a_name_that_needs_an_extra_says_which(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, f"nystromformer.experiments.{module}", None)
    message = rf"{name} needs `pip install '\.\[{extra}\]'` in the folder of "
    with pytest.raises(ModuleNotFoundError, match=message):
        getattr(nystromformer, name)


def test_a_star_imports_no_name_that_needs_an_extra(monkeypatch):
    for module in ("trained_run", "approximation.diagnosis"):
        monkeypatch.setitem(sys.modules, f"nystromformer.experiments.{module}", None)
    names = {}
    exec("from nystromformer import *", names)
    assert set(nystromformer.__all__) <= names.keys()


def test_all_public_names_of_the_package_are_there():
    for name in (*nystromformer.__all__, "diagnose", "load_run"):
        assert hasattr(nystromformer, name)
        assert name in dir(nystromformer)
    assert not hasattr(nystromformer, "Transformer")


def lines_printed_by(program):
    """The lines that a program prints in a Python of its own."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def test_an_attention_loads_no_other():
    program = (
        "import sys, nystromformer\n"
        "from nystromformer.attention import check_attention\n"
        "check_attention('linear', {})\n"
        "for name in sys.modules:\n"
        "    if name.startswith('nystromformer.attention.'):\n"
        "        print(name.rpartition('.')[2])"
    )
    assert sorted(lines_printed_by(program)) == ["base", "linear", "options"]


def test_a_report_loads_neither_model_nor_tasks():
    program = (
        "import sys, nystromformer.experiments.report.report_page\n"
        "for name in sys.modules:\n"
        "    if name.startswith(('nystromformer.', 'lra_tasks.')):\n"
        "        if '.experiments' not in name:\n"
        "            print(name)"
    )
    # The first has the names of the attentions, and imports none.
    names = ["attention", "errors", "metrics", "run_files", "validation"]
    loaded = sorted(lines_printed_by(program))
    assert loaded == [f"nystromformer.{name}" for name in names]


def test_published_weights_name_the_extra_that_they_need():
    program = (
        "import sys\n"
        "sys.modules['safetensors'] = None\n"
        "try:\n"
        "    import nystromformer.huggingface\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)"
    )
    (message,) = lines_printed_by(program)
    assert message.startswith("nystromformer.huggingface needs `pip install '.[hf]'`")


def test_a_script_says_in_one_line_what_it_needs():
    program = (
        "import runpy, sys\n"
        "sys.argv = ['scripts/predict.py']\n"
        "sys.modules['absl'] = None\n"
        "sys.path.insert(0, 'scripts')\n"
        "runpy.run_path('scripts/predict.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    needs = "predict.py needs `pip install '.[train,report]'` in the folder of"
    assert needs in refused(done)


# With what pip would not have installed hidden from it.
ALONE = """
import sys
for name in ("safetensors", "ml_collections", "tensorboardX", "tqdm"):
    sys.modules[name] = None
import nystromformer
assert not nystromformer.__file__.startswith(ROOT), nystromformer.__file__
from nystromformer import *
assert Encoder and nystrom_attention
print(*(name for name in sys.modules if name in ("lra_tasks", "pandas", "matplotlib")))
"""
TOGETHER = """
import importlib
import nystromformer
from nystromformer.config import Config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.provenance import commit
keys = "batch_size", "num_steps", "eval_every", "checkpoint_every"
groups = {"task": {"name": "listops"}, "attention": {"name": "nystrom"}, "model": {}}
groups |= {"optimizer": {}, "train": dict.fromkeys(keys, 1)}
config = Config.from_mapping(groups)
print(nystromformer.load_run.__name__, Experiment(config).task.name)
assert commit() is None
for name in MODULES:
    module = importlib.import_module(name)
    assert not module.__file__.startswith(ROOT), module.__file__
"""
# What only scripts use.
LEFT_OUT = [
    f"nystromformer/experiments/{name}/" for name in ("report", "speed", "sweep")
]


@pytest.mark.slow
def test_wheel_works_outside_the_tree(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # A copy, in which the build may leave what it likes.
    clone = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}"]
    subprocess.run([*clone, tmp_path / "source"], check=True)
    wheel = [*pip, "wheel", "--no-deps", f"--wheel-dir={tmp_path}", tmp_path / "source"]
    subprocess.run(wheel, check=True)
    [built] = tmp_path.glob("nystromformer_jax-*.whl")
    names = zipfile.ZipFile(built).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"nystromformer", "lra_tasks"}
    assert not [name for name in names if name.startswith(tuple(LEFT_OUT))]
    files = [name.removesuffix("/__init__.py") for name in names if ".py" in name]
    modules = [name.removesuffix(".py").replace("/", ".") for name in files]
    install = [*pip, "install", "--no-deps", f"--target={tmp_path / 'site'}", built]
    subprocess.run(install, check=True)
    for program, stdout in ((ALONE, ""), (TOGETHER, "load_run listops")):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"ROOT = {str(ROOT)!r}\nMODULES = {modules}\n{program}",
            ],
            check=False,
            env={"PYTHONPATH": str(tmp_path / "site"), "JAX_PLATFORMS": "cpu"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == stdout

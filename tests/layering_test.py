"""Who may know whom: the imports of every source file, parsed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import nystromformer

ROOT = Path(__file__).parents[1]
PACKAGES = ("nystromformer", "lra_tasks", "configs", "scripts")
SOURCES = sorted(
    path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.py")
)
# Floors of the model, from the bottom up: a module imports only what stands below it.
FLOORS = (
    {"errors", "validation", "streams", "run_files", "training_config"},
    {"ops", "dropout"},
    {"dot_product", "rotary", "short_conv", "pooling"},
    {"fused"},
    {"nystrom"},
    {"landmarks"},
    {"factors"},
    {"attention"},
    {"encoder_config", "open_groups"},
    {"layers"},
    {"encoder"},
    {"heads", "huggingface_layout"},
    {"huggingface_files"},
    {"huggingface"},
    {"config"},
)
CORE = set().union(*FLOORS[1:7])  # the floors that need jax alone
DEVICE = {"jax", "flax", "optax", "orbax"}
PURE = {"jax", "nystromformer", "collections", "functools", "math", "typing"}


def imports(path):
    """The dotted names that a file imports; ruff sees that they are absolute."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from package import module` reaches the module as well.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            names.add(str(node.module))
    return names


def names_within(names, packages):
    """The names that lie in one of the packages."""
    return {
        name
        for name in names
        for package in packages
        if name == package or name.startswith(f"{package}.")
    }


def forbidden_packages(path):
    """The packages that a source file must not import."""
    module = ".".join(path.with_suffix("").parts)
    floors = [{f"nystromformer.{name}" for name in floor} for floor in FLOORS]
    upper = {"nystromformer.experiments", "lra_tasks", "configs", "scripts"}
    if names_within({module}, {"lra_tasks"}):
        return {*DEVICE, "nystromformer", "configs", "scripts"}
    if names_within({module}, {"nystromformer.experiments"}):
        return {"scripts"}
    if names_within({module}, {"nystromformer.training"}):
        return upper.union(*floors[1:])  # it knows no model
    if names_within({module}, {"nystromformer"}) and module != "nystromformer.__init__":
        floors_of_module = [
            i for i, names in enumerate(floors) if names_within({module}, names)
        ]
        assert floors_of_module, f"{path} stands on no floor: add it to FLOORS"
        return upper.union(
            {"nystromformer.training"}, *floors[floors_of_module[0] + 1 :]
        )
    return set()


def test_imports_point_downwards():
    upward_imports = {}
    for path in SOURCES:
        names = names_within(imports(path), forbidden_packages(path))
        if names:
            upward_imports[str(path)] = names
    assert not upward_imports


def test_the_core_needs_only_jax_and_configs_are_plain_data():
    core = [f"nystromformer/{name}.py" for name in CORE]
    plain = {"ml_collections", "configs", "lra_tasks", "nystromformer"}
    plain |= {"collections", "dataclasses", "functools", "typing"}
    for path in SOURCES:
        if path.as_posix() in core:
            assert imports(path) == names_within(imports(path), PURE), path
        elif path.parts[0] == "configs":
            assert imports(path) == names_within(imports(path), plain), path


def test_names_say_what_a_file_is_for():
    vague = {"util", "utils", "helper", "helpers", "common", "misc"}
    assert not [path for path in SOURCES if path.stem in vague]
    for package in PACKAGES:
        paths = [path for path in SOURCES if path.parts[0] == package]
        names = [path.stem for path in paths if path.stem != "__init__"]
        # Nyström attention is a function and a class of the table. Errors are
        # exceptions at the bottom, and errors of an approximation in a study.
        names_of_two_files = {"nystrom", "errors"}
        assert {name for name in names if names.count(name) > 1} <= names_of_two_files


def lines_printed_by(program):
    """The lines that a program prints in a Python of its own."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def test_errors_are_known_without_the_model():
    program = (
        "import sys, nystromformer.errors\n"
        "print([name for name in sys.modules if name.startswith('nystromformer')])\n"
        "print([name for name in ('jax', 'flax') if name in sys.modules])"
    )
    assert lines_printed_by(program) == [
        "['nystromformer', 'nystromformer.errors']",
        "[]",
    ]


def test_training_loads_no_model():
    program = (
        "import sys, nystromformer.training.loop, nystromformer.training.optimizer\n"
        "names = ('attention', 'config', 'encoder_config', 'encoder', 'heads')\n"
        "print([x for x in names if f'nystromformer.{x}' in sys.modules])"
    )
    assert lines_printed_by(program) == ["[]"]


def test_an_attention_loads_no_other():
    program = (
        "import sys, nystromformer\n"
        "from nystromformer.attention import check_attention\n"
        "check_attention('linear', {})\n"
        "for name in sys.modules:\n"
        "    if name.startswith('nystromformer.attention.'):\n"
        "        print(name.rpartition('.')[2])"
    )
    assert lines_printed_by(program) == ["base", "linear"]


def test_a_report_loads_neither_model_nor_tasks():
    program = (
        "import json, sys, nystromformer.experiments.report.report_page\n"
        "names = [name for name in sys.modules if name.startswith('nystromformer')]\n"
        "print(json.dumps([name for name in names if '.experiments' not in name]))\n"
        "print([name for name in sys.modules if name.startswith('lra_tasks.')])"
    )
    loaded, tasks = lines_printed_by(program)
    assert json.loads(loaded) == [
        "nystromformer",
        "nystromformer.errors",
        "nystromformer.run_files",
    ]
    assert tasks == "[]"


def test_all_public_names_of_the_package_are_there():
    for name in (*nystromformer.__all__, "diagnose", "load_run"):
        assert hasattr(nystromformer, name)
        assert name in dir(nystromformer)
    assert not hasattr(nystromformer, "Transformer")

"""Who may know whom: the imports of every source file, parsed."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("nystromformer", "lra_tasks", "configs", "scripts")
SOURCES = sorted(
    path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.py")
)
# From the bottom up: a module imports only what stands before it.
ORDER = (
    *("precision", "dropout", "gelu", "dense", "blocks", "masking", "convolution"),
    *("landmarks", "nystrom", "matrices"),
    *("attention", "encoder", "classifier", "config"),
)
DEVICE = {"jax", "flax", "optax", "orbax"}
LANGUAGE = {"collections", "functools", "math", "typing"}
MODELS = {f"nystromformer.{name}" for name in ORDER[:-1]}

# Tested through another file: attentions by the contract of attention_test, as is the
# precision; the parts of the Pathfinder generator by pathfinder_generator_test; several
# processes by distributed_test.
TESTED_ELSEWHERE = {
    "lra_tasks/pathfinder_growth.py",
    "lra_tasks/pathfinder_paddles.py",
    "nystromformer/__init__.py",
    "nystromformer/attention/base.py",
    "nystromformer/attention/none.py",
    "nystromformer/precision.py",
    "nystromformer/training/processes.py",
}


def imports(path):
    """The dotted names that a file imports, relative ones marked by their dots."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from package import module` reaches the module as well.
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def reaches(names, packages):
    """Those of the names that lie in one of the packages."""
    return {n for n in names for p in packages if n == p or n.startswith(f"{p}.")}


def below(*packages):
    return [
        p for p in SOURCES if reaches({".".join(p.with_suffix("").parts)}, packages)
    ]


def test_there_is_something_to_parse():
    assert reaches(imports("nystromformer/encoder.py"), {"flax", "jax"})
    assert not reaches({"nystromformer.nystrom"}, {"nystromformer.nyst"})


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_imports_are_absolute(path):
    assert not {name for name in imports(path) if name.startswith(".")}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_file_is_named_for_nothing(path):
    assert path.stem not in {"util", "utils", "helper", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", below("nystromformer"), ids=str)
def test_the_model_knows_neither_data_nor_configs_nor_scripts(path):
    assert not reaches(imports(path), {"lra_tasks", "configs", "scripts"})


@pytest.mark.parametrize("path", below("lra_tasks"), ids=str)
def test_the_data_knows_neither_the_device_nor_the_model(path):
    unwanted = {*DEVICE, "nystromformer", "configs", "scripts"}
    assert not reaches(imports(path), unwanted)


@pytest.mark.parametrize("path", below("configs"), ids=str)
def test_configs_are_plain_data(path):
    names = imports(path)
    assert names == reaches(names, {"ml_collections", "configs"} | LANGUAGE)


@pytest.mark.parametrize("path", below("nystromformer.training"), ids=str)
def test_training_imports_no_model(path):
    assert not reaches(imports(path), MODELS)


@pytest.mark.parametrize("name", ORDER)
def test_the_model_imports_downwards(name):
    above = {f"nystromformer.{n}" for n in ORDER[ORDER.index(name) + 1 :]}
    for path in below(f"nystromformer.{name}"):
        assert not reaches(imports(path), above | {"nystromformer.training"}), path


@pytest.mark.parametrize("name", ORDER[1 : ORDER.index("attention")])
def test_the_core_needs_only_jax(name):
    names = imports(f"nystromformer/{name}.py")
    assert names == reaches(names, {"jax", "nystromformer"} | LANGUAGE)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_every_module_has_a_test_of_its_name(path):
    if path.as_posix() in TESTED_ELSEWHERE:
        return
    stem = path.parent.name if path.stem == "__init__" else path.stem
    if path.stem == "__init__" and len(ast.parse((ROOT / path).read_text()).body) <= 1:
        return  # a docstring has no behaviour
    assert list((ROOT / "tests").rglob(f"{stem}_test.py")), f"no {stem}_test.py"

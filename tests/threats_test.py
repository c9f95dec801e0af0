"""What THREATS.md promises: calls that no source makes, bounds, tests that exist."""

import ast
import re
import tracemalloc
from pathlib import Path

import pytest

from lra_tasks.archives import open_members, read_whole
from lra_tasks.split import DataError
from tests.archive_server import tar_of
from tests.layering_test import ROOT, SOURCES, imports, reaches

UNSAFE = {
    *("eval", "exec", "compile", "__import__"),
    *("os.system", "os.popen", "yaml.load", "yaml.unsafe_load"),
    *("pickle.load", "pickle.loads", "torch.load", "np.load", "numpy.load"),
}
ADMITTED = {
    # The parts of a preparation: plain arrays, as np.load's allow_pickle=False holds.
    "lra_tasks/pathfinder.py": {"np.load"},
    # With weights_only=True: tensors, and nothing that a pickle could call.
    "nystromformer/torch_layout.py": {"torch.load"},
}


def calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def unsafe(source: str) -> set[str]:
    """What is called in a source that runs what it reads."""
    found = {ast.unparse(call.func) for call in calls(source)} & UNSAFE
    for call in calls(source):
        for keyword in call.keywords:
            risky = keyword.arg in ("shell", "allow_pickle", "weights_only")
            safe = "True" if keyword.arg == "weights_only" else "False"
            if risky and ast.unparse(keyword.value) != safe:
                found.add(f"{keyword.arg}={ast.unparse(keyword.value)}")
    return found


def test_no_source_runs_what_it_reads():
    for path in SOURCES:
        found = unsafe((ROOT / path).read_text())
        assert found <= ADMITTED.get(path.as_posix(), set()), path


def test_what_would_run_it_is_seen():
    source = "exec(x); np.load(f, allow_pickle=True); run(c, shell=y); pickle.loads(b)"
    assert unsafe(source) == {
        *("exec", "np.load", "pickle.loads", "allow_pickle=True", "shell=y")
    }


def test_nothing_is_unpickled():
    risky = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
    found = [path.as_posix() for path in SOURCES if reaches(imports(path), risky)]
    assert not found


def read(path: Path) -> None:
    with open_members(path, "txt") as members:
        for _, file in members:
            read_whole(file, "it", 1_000_000)


def test_a_bomb_is_refused_within_the_memory_of_its_limit(tmp_path):
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(tar_of({"a/1.txt": bytes(200_000_003)}))
    assert path.stat().st_size < 500_000
    tracemalloc.start()
    with pytest.raises(DataError, match=r"it is longer than 1,000,000 bytes"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_every_test_that_the_threat_model_names_exists():
    named = re.findall(
        r"`([\w/]+_test)\.(test_\w+)`", (ROOT / "THREATS.md").read_text()
    )
    assert len(named) > 15
    for module, name in named:
        source = Path(ROOT / "tests" / f"{module}.py").read_text()
        assert f"\ndef {name}(" in source, (module, name)


def test_every_requirement_has_an_upper_bound():
    for name in ("requirements", "requirements-dev", "requirements-parity"):
        lines = (ROOT / f"{name}.txt").read_text().splitlines()
        needed = [line for line in lines if line and not line.startswith("#")]
        assert needed, name
        assert not [line for line in needed if "<" not in line and "==" not in line]

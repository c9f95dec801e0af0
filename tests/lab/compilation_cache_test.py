"""Where compiled programs are kept; that a second start uses them: train_test."""

import jax
import pytest

from nystromformer.lab.compilation_cache import keep_compiled_programs

OPTIONS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_they_lie_in_the_home_and_do_not_grow_for_ever(tmp_path):
    keep_compiled_programs()
    folder = jax.config.jax_compilation_cache_dir
    assert folder.startswith(f"{tmp_path}/.cache/nystromformer/")
    assert 0 < jax.config.jax_compilation_cache_max_size <= 2**30


def test_a_folder_that_the_person_named_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == "/elsewhere"


def test_processors_that_can_do_other_things_do_not_share(monkeypatch):
    folders = set()
    for features in ("flags : avx2", "flags : avx2 avx512f"):
        monkeypatch.setattr("pathlib.Path.read_text", lambda _, text=features: text)
        jax.config.update("jax_compilation_cache_dir", None)
        keep_compiled_programs()
        folders.add(jax.config.jax_compilation_cache_dir)
    assert len(folders) == 2

"""Where compiled programs are kept; bench/starts_test: a second start uses them."""

import jax

from nystromformer.lab.session import keep_compiled_programs

OPTIONS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")


def test_programs_lie_in_the_home_by_processor_and_do_not_grow(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    folders = set()
    for features in ("flags : avx2", "flags : avx2 avx512f"):
        monkeypatch.setattr("pathlib.Path.read_text", lambda _, text=features: text)
        jax.config.update("jax_compilation_cache_dir", None)
        keep_compiled_programs()
        folders.add(jax.config.jax_compilation_cache_dir)
    assert 0 < jax.config.jax_compilation_cache_max_size <= 2**30
    keep_compiled_programs()  # which leaves a folder that is set
    assert jax.config.jax_compilation_cache_dir in folders
    for name, value in before.items():
        jax.config.update(name, value)
    assert len(folders) == 2
    assert all(x.startswith(f"{tmp_path}/.cache/nystromformer/") for x in folders)

"""Where the commands keep their compiled programs."""

import pytest

SCRIPT = """
import jax
from nystromformer.experiments.compilation_cache import use_compilation_cache
use_compilation_cache()
print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "{home}/.cache/nystromformer 1073741824"), ("/of/mine", "/of/mine -1")],
)
def test_programs_are_kept_in_the_home_folder_unless_jax_has_another(
    commands, tmp_path, folder, expected
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {"HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": folder}
    done = commands.with_env(**environment).run(str(script))
    assert done.stdout.strip() == expected.format(home=tmp_path), done.stderr

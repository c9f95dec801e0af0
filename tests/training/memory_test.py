"""A program's bytes are those counted by hand; a CPU has no counter."""

import jax
import jax.numpy as jnp
import pytest

from nystromformer.training.devices import peak_bytes, program_bytes


@pytest.mark.parametrize("donated", [False, True])
def test_what_a_program_holds_is_counted_once(donated):
    add = jax.jit(jnp.add, donate_argnums=0 if donated else ())
    arrays = [jax.ShapeDtypeStruct((1009,), jnp.float32)] * 2
    held = program_bytes(add.lower(*arrays).compile())
    assert held.arguments == 2 * 4 * 1009
    assert held.outputs == (0 if donated else 4 * 1009)
    assert held.temporaries < 100


def test_a_silent_compiler_and_a_device_that_does_not_count_give_none():
    class Silent:
        def memory_analysis(self):
            return None

    assert program_bytes(Silent()) is None
    assert peak_bytes() is None

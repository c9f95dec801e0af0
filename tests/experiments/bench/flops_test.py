"""Products are counted as often as they are made."""

import jax
import jax.numpy as jnp
import pytest

from nystromformer.experiments.bench.flops import product_flops

A, B = jnp.ones((3, 4, 5)), jnp.ones((3, 5, 7))
ONE = 2 * 3 * 4 * 5 * 7


def count(function, *args):
    return product_flops(jax.jit(function).trace(*args).jaxpr.jaxpr)


def scanned(a, b):
    return jax.lax.scan(
        lambda sum_, _: (sum_ + a @ b, 0), jnp.zeros((3, 4, 7)), length=6
    )


@pytest.mark.parametrize(
    ("function", "products"),
    [
        (lambda a, b: a @ b, 1),
        (lambda a, b: jax.jit(jnp.matmul)(a, b) + a.sum(), 1),
        (lambda a, b: jax.vmap(lambda a, b: (a.T.T @ b).sum())(a, b), 1),
        (scanned, 6),
        (
            lambda a, b: jax.lax.while_loop(
                lambda x: x[0, 0, 0] < 9, lambda x: x + a @ b, a @ b
            ),
            2,
        ),
        (
            lambda a, b: jax.lax.cond(a[0, 0, 0] > 0, lambda: a @ b, lambda: 2 * a @ b),
            1,
        ),
    ],
)
def test_every_product_counts(function, products):
    assert count(function, A, B) == products * ONE


def test_the_gradient_of_a_remade_product_counts_it_again():
    def loss(a):
        return jax.checkpoint(lambda a: jnp.sin(a @ B))(a).sum()

    assert count(jax.value_and_grad(loss), A) == 3 * ONE


def test_what_the_data_decide_has_no_number():
    def either(a, b):
        return jax.lax.cond(a[0, 0, 0] > 0, lambda: a @ b, lambda: 0 * a @ b @ b.mT @ b)

    assert count(either, A, B) is None
    assert (
        count(lambda a, b: jax.lax.map(lambda x: either(a, b) * x, a[0, 0]), A, B)
        is None
    )

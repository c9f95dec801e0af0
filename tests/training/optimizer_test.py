"""AdamW and its schedule against their formulas, written out in numpy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.config import OptimizerConfig
from nystromformer.training.optimizer import learning_rate, make_optimizer
from tests.training.conftest import ADAM


def config(learning_rate, warmup_steps, **options):
    sizes = {"learning_rate": learning_rate, "warmup_steps": warmup_steps}
    return OptimizerConfig(**{**sizes, **ADAM, **options})


def test_learning_rate_passes_through_its_three_corners_in_straight_lines():
    rate = learning_rate(config(1e-4, 100), num_steps=500)
    corners = [(0, 1e-4 / 25), (100, 1e-4), (500, 1e-4 / 25 / 1e4)]
    for step, value in corners:
        assert float(rate(step)) == pytest.approx(value, rel=1e-4)
    for (s0, r0), (s1, r1) in itertools.pairwise(corners):
        assert float(rate((s0 + s1) // 2)) == pytest.approx((r0 + r1) / 2, rel=1e-4)


def test_learning_rate_without_decay_stays_at_its_peak():
    rate = learning_rate(config(1e-4, 100, decay="none"), 500)
    found = [float(rate(step)) for step in (0, 100, 300, 500)]
    assert found == pytest.approx([1e-4 / 25, 1e-4, 1e-4, 1e-4], rel=1e-4)


@pytest.mark.parametrize("warmup_steps", [0, 500])
def test_learning_rate_is_finite_with_no_warmup_and_with_nothing_else(warmup_steps):
    rate = learning_rate(config(1e-4, warmup_steps), num_steps=500)
    assert all(0 < float(rate(step)) <= 1.0001e-4 for step in (0, 250, 499))


@pytest.mark.parametrize(
    ("weight_decay", "cycle_b1"), [(0.0, False), (0.3, False), (0.3, True)]
)
def test_make_optimizer_is_adamw_by_its_formula(weight_decay, cycle_b1):
    b2, eps = ADAM["b2"], ADAM["eps"]
    # PyTorch's OneCycleLR: β₁ of its corners 0, 2 and 9, and lines between them; the
    # bias is corrected by the β₁ of the step.
    at = np.interp(range(4), [0, 2, 9], [0.95, 0.85, 0.95]) if cycle_b1 else [0.9] * 4
    options = {"weight_decay": weight_decay, "cycle_b1": cycle_b1}
    optimizer = make_optimizer(config(0.1, 2, **options), num_steps=9)
    rate = learning_rate(config(0.1, 2), num_steps=9)
    rng = np.random.default_rng(0)
    theta = expected = rng.normal(size=5)
    theta = jnp.asarray(theta)
    state = optimizer.init(theta)
    m = v = np.zeros(5)
    for t, b1 in enumerate(at, 1):
        gradient = rng.normal(size=5)
        updates, state = optimizer.update(jnp.asarray(gradient), state, theta)
        theta = theta + updates
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        expected = expected - float(rate(t - 1)) * (step + weight_decay * expected)
    np.testing.assert_allclose(theta, expected, rtol=1e-5)

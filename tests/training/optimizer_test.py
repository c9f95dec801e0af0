"""AdamW and its schedule against their formulas, written out in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.config import OptimizerConfig
from nystromformer.training.optimizer import learning_rate, make_optimizer


def config(learning_rate, warmup_steps, **options):
    sizes = {"learning_rate": learning_rate, "warmup_steps": warmup_steps}
    return OptimizerConfig(**sizes, **options)


@pytest.mark.parametrize(("decay", "end"), [("linear", 1 / 25e4), ("none", 1.0)])
def test_learning_rate_passes_through_its_three_corners_in_straight_lines(decay, end):
    rate = learning_rate(config(1e-4, 100, decay=decay), num_steps=500)
    steps = [0, 50, 100, 300, 500]
    expected = 1e-4 * np.interp(steps, [0, 100, 500], [1 / 25, 1, end])
    assert [float(rate(x)) for x in steps] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("warmup_steps", [0, 500])
def test_learning_rate_is_finite_with_no_warmup_and_with_nothing_else(warmup_steps):
    rate = learning_rate(config(1e-4, warmup_steps), num_steps=500)
    assert all(0 < float(rate(step)) <= 1.0001e-4 for step in (0, 250, 499))


@pytest.mark.parametrize(
    ("weight_decay", "cycle_b1", "b1", "b2", "eps"),
    [
        (0.0, False, 0.9, 0.999, 1e-6),
        (0.3, False, 0.9, 0.999, 1e-6),
        (0.3, True, 0.9, 0.999, 1e-6),
        (0.0, False, 0.6, 0.95, 1e-2),  # ε of the size of the gradients
        (0.3, True, 0.6, 0.8, 1.0),
    ],
)
def test_make_optimizer_is_adamw_by_its_formula(weight_decay, cycle_b1, b1, b2, eps):
    # PyTorch's OneCycleLR: β₁ of its corners 0, 2 and 9, and lines between them; the
    # bias is corrected by the β₁ of the step.
    at = np.interp(range(4), [0, 2, 9], [0.95, 0.85, 0.95]) if cycle_b1 else [b1] * 4
    options = {"weight_decay": weight_decay, "cycle_b1": cycle_b1}
    options |= {"b1": b1, "b2": b2, "eps": eps}
    optimizer = make_optimizer(config(0.1, 2, **options), num_steps=9)
    rate = learning_rate(config(0.1, 2), num_steps=9)
    rng = np.random.default_rng(0)
    theta = expected = rng.normal(size=5)
    theta = jnp.asarray(theta)
    state = optimizer.init(theta)
    m = v = np.zeros(5)
    for t, b1 in enumerate(at, 1):
        gradient = min(eps * 1e2, 1) * rng.normal(size=5)
        updates, state = optimizer.update(jnp.asarray(gradient), state, theta)
        theta = theta + updates
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        expected = expected - float(rate(t - 1)) * (step + weight_decay * expected)
    np.testing.assert_allclose(theta, expected, rtol=1e-5)

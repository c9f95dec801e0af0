"""AdamW and its schedule against their formulas, written out in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.config import OptimizerConfig
from nystromformer.training.optimizer import learning_rate, make_optimizer


@pytest.mark.parametrize(("decay", "end"), [("linear", 1 / 25e4), ("none", 1.0)])
def test_learning_rate_passes_through_its_three_corners_in_straight_lines(decay, end):
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=100, decay=decay)
    rate = learning_rate(config, num_steps=500)
    steps = [0, 50, 100, 300, 500]
    expected = 1e-4 * np.interp(steps, [0, 100, 500], [1 / 25, 1, end])
    assert [float(rate(step)) for step in steps] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("warmup_steps", "ends"), [(0, [1, 1 / 25e4]), (500, [1 / 25, 1])]
)
def test_learning_rate_is_one_line_with_no_warmup_and_with_nothing_else(
    warmup_steps, ends
):
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=warmup_steps)
    rate = learning_rate(config, num_steps=500)
    steps = [0, 1, 250, 499]
    expected = 1e-4 * np.interp(steps, [0, 500], ends)
    assert [float(rate(step)) for step in steps] == pytest.approx(expected, rel=1e-4)


def adamw(theta, gradients, config):
    """The parameters after steps of AdamW, by its formula, of nine steps in all."""
    rate = learning_rate(config, num_steps=9)
    b2 = config.b2
    m = np.zeros(theta.shape)
    v = np.zeros(theta.shape)
    for step, gradient in enumerate(gradients):
        b1 = config.b1
        if config.cycle_b1:
            # As in PyTorch's OneCycleLR, β₁ goes in straight lines from corner to
            # corner, and the bias is corrected by the β₁ of the step.
            b1 = np.interp(step, [0, 2, 9], [0.95, 0.85, 0.95])
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        unbiased_m = m / (1 - b1 ** (step + 1))
        unbiased_v = v / (1 - b2 ** (step + 1))
        update = unbiased_m / (np.sqrt(unbiased_v) + config.eps)
        theta = theta - float(rate(step)) * (update + config.weight_decay * theta)
    return theta


@pytest.mark.parametrize(
    ("weight_decay", "cycle_b1", "b1", "b2", "eps"),
    [
        (0.0, False, 0.9, 0.999, 1e-6),
        (0.3, False, 0.9, 0.999, 1e-6),
        (0.3, True, 0.9, 0.999, 1e-6),
        # Here ε has the size of the gradients.
        (0.0, False, 0.6, 0.95, 1e-2),
        (0.3, True, 0.9, 0.8, 1.0),
    ],
)
def test_make_optimizer_is_adamw_by_its_formula(weight_decay, cycle_b1, b1, b2, eps):
    config = OptimizerConfig(
        learning_rate=0.1,
        warmup_steps=2,
        weight_decay=weight_decay,
        cycle_b1=cycle_b1,
        b1=b1,
        b2=b2,
        eps=eps,
    )
    optimizer = make_optimizer(config, num_steps=9)
    rng = np.random.default_rng(0)
    initial_theta = rng.normal(size=5)
    gradients = min(eps * 1e2, 1) * rng.normal(size=(4, 5))

    theta = jnp.asarray(initial_theta)
    state = optimizer.init(theta)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, theta)
        theta = theta + updates

    expected = adamw(initial_theta, gradients, config)
    np.testing.assert_allclose(theta, expected, rtol=1e-5)

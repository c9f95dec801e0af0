"""AdamW with the paper's schedule."""

from typing import Any

import optax

from nystromformer.training_config import OptimizerConfig


def triangle(
    start: float, peak: float, end: float, warmup_steps: int, num_steps: int
) -> optax.Schedule:
    """Linear from start to peak at warmup_steps, then linear to end at num_steps."""
    up = optax.linear_schedule(start, peak, max(warmup_steps, 1))
    down = optax.linear_schedule(peak, end, max(num_steps - warmup_steps, 1))
    return optax.join_schedules([up, down], boundaries=[warmup_steps])


def learning_rate(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Linear from peak/25 to the peak, then linear to peak/(25·10⁴) at num_steps.

    Without a warm-up it starts at the peak; with decay="none" it stays there.
    """
    peak = config.learning_rate
    end = peak / 25 / 1e4 if config.decay == "linear" else peak
    return triangle(peak / 25, peak, end, config.warmup_steps, num_steps)


def make_optimizer(
    config: OptimizerConfig, num_steps: int
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019), decoupled weight decay, no clipping.

    With cycle_b1, b1 goes from 0.95 to 0.85 at the rate's peak and back (OneCycleLR).
    """
    rate = learning_rate(config, num_steps)

    def adamw(rate: optax.ScalarOrSchedule, b1: Any) -> optax.GradientTransformation:
        return optax.adamw(
            rate,
            b1=b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    if not config.cycle_b1:
        return adamw(rate, config.b1)
    cycle = triangle(0.95, 0.85, 0.95, config.warmup_steps, num_steps)
    return optax.inject_hyperparams(adamw)(rate, cycle)

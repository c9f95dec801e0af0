"""AdamW with the paper's schedule."""

from typing import Any

import optax


def warmup_linear(
    learning_rate: float, warmup_steps: int, num_steps: int, decay: str = "linear"
) -> optax.Schedule:
    """Linear from peak/25 to the peak, then linear to peak/(25·10⁴) at num_steps.

    With decay="none" it stays at the peak.
    """
    start = learning_rate / 25
    end = start / 1e4 if decay == "linear" else learning_rate
    return optax.join_schedules(
        [
            optax.linear_schedule(start, learning_rate, max(warmup_steps, 1)),
            optax.linear_schedule(learning_rate, end, max(num_steps - warmup_steps, 1)),
        ],
        boundaries=[warmup_steps],
    )


def cycled_b1(warmup_steps: int, num_steps: int) -> optax.Schedule:
    """Linear from 0.95 to 0.85 at the peak of the rate, then linear back to 0.95."""
    return optax.join_schedules(
        [
            optax.linear_schedule(0.95, 0.85, max(warmup_steps, 1)),
            optax.linear_schedule(0.85, 0.95, max(num_steps - warmup_steps, 1)),
        ],
        boundaries=[warmup_steps],
    )


def make_optimizer(
    *,
    learning_rate: float,
    warmup_steps: int,
    num_steps: int,
    weight_decay: float,
    b1: float,
    b2: float,
    eps: float,
    cycle_b1: bool = False,
    decay: str = "linear",
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019), decoupled weight decay, no clipping.

    With cycle_b1, `cycled_b1` takes the place of b1, as in PyTorch's OneCycleLR.
    """
    rate = warmup_linear(learning_rate, warmup_steps, num_steps, decay)

    def adamw(rate: optax.ScalarOrSchedule, b1: Any) -> optax.GradientTransformation:
        return optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay)

    if cycle_b1:
        return optax.inject_hyperparams(adamw)(rate, cycled_b1(warmup_steps, num_steps))
    return adamw(rate, b1)

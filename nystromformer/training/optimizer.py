"""AdamW with the paper's schedule."""

from typing import Any

import optax


def corners(
    start: float, peak: float, end: float, warmup_steps: int, num_steps: int
) -> optax.Schedule:
    """Linear from start to peak at warmup_steps, then linear to end at num_steps."""
    up = optax.linear_schedule(start, peak, max(warmup_steps, 1))
    down = optax.linear_schedule(peak, end, max(num_steps - warmup_steps, 1))
    return optax.join_schedules([up, down], boundaries=[warmup_steps])


def warmup_linear(
    learning_rate: float, warmup_steps: int, num_steps: int, decay: str = "linear"
) -> optax.Schedule:
    """Linear from peak/25 to the peak, then linear to peak/(25·10⁴) at num_steps.

    With decay="none" it stays at the peak.
    """
    start = learning_rate / 25
    end = start / 1e4 if decay == "linear" else learning_rate
    return corners(start, learning_rate, end, warmup_steps, num_steps)


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

    With cycle_b1, b1 goes from 0.95 to 0.85 at the peak of the rate and back, as in
    PyTorch's OneCycleLR.
    """
    rate = warmup_linear(learning_rate, warmup_steps, num_steps, decay)

    def adamw(rate: optax.ScalarOrSchedule, b1: Any) -> optax.GradientTransformation:
        return optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay)

    if cycle_b1:
        cycle = corners(0.95, 0.85, 0.95, warmup_steps, num_steps)
        return optax.inject_hyperparams(adamw)(rate, cycle)
    return adamw(rate, b1)

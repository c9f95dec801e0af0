"""AdamW with the paper's schedule."""

import optax


def warmup_linear(
    learning_rate: float, warmup_steps: int, num_steps: int
) -> optax.Schedule:
    """Linear from peak/25 to the peak, then linear to peak/(25·10⁴) at num_steps."""
    start, end = learning_rate / 25, learning_rate / 25 / 1e4
    return optax.join_schedules(
        [
            optax.linear_schedule(start, learning_rate, max(warmup_steps, 1)),
            optax.linear_schedule(learning_rate, end, max(num_steps - warmup_steps, 1)),
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
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019), decoupled weight decay, no clipping."""
    return optax.adamw(
        warmup_linear(learning_rate, warmup_steps, num_steps),
        b1=b1,
        b2=b2,
        eps=eps,
        weight_decay=weight_decay,
    )

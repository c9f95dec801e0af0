"""The settings of the optimizer and of the training loop; they need no model."""

import dataclasses

from nystromformer.validation import check_choice, check_range, check_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up to learning_rate, then, unless switched off, decay."""

    # The peak. With a warm-up the rate starts at a 25th of it; with decay="linear" it
    # falls towards a 250,000th, which it would reach in the step after the last.
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    # It shrinks all parameters, also biases and the scales of norms, which BERT's own
    # code and the Trainer of transformers leave out.
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    cycle_b1: bool = False  # b1 from 0.95 down to 0.85 at the peak, and back
    decay: str = "linear"  # "linear", or "none": the peak stays

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay", "eps"):
            check_range(name, getattr(self, name), 0)
        check_range("warmup_steps", self.warmup_steps, 0)
        for name in ("b1", "b2"):
            check_rate(name, getattr(self, name))
        check_choice("decay", self.decay, ("linear", "none"))
        if self.cycle_b1 and self.b1 != OptimizerConfig.b1:
            raise ValueError(
                f"b1={self.b1} has no effect with cycle_b1=True, which goes from 0.95 "
                "to 0.85 and back: leave out one of the two"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, intervals, batches and starting weights of training."""

    batch_size: int
    # One of the two is given. Epochs may be fractions.
    num_steps: int = 0
    num_epochs: float | None = None
    # The intervals are counted in steps.
    eval_every: int = 500
    checkpoint_every: int = 500
    log_every: int = 50
    # Validation and test measure so many examples of their splits; None = all.
    max_eval_examples: int | None = None
    seed: int = 0  # for all that is drawn: weights, order, dropout, augmentation
    # A batch is computed in this many parts, one by one, which needs less memory.
    grad_accum_steps: int = 1
    # Parts are padded to one of this many lengths; each length compiles a program.
    length_buckets: int = 1
    init_from: str | None = None  # the workdir of a run whose best weights to take
    # How often the learned positions of that run may be repeated, where sequences here
    # are longer.
    position_repeats: int = 1
    # Of training examples alone, where the task has it: pictures mirrored with
    # probability 1/2, arguments of ListOps in a random order.
    flip_horizontal: bool = False
    flip_vertical: bool = False
    shuffle_arguments: bool = False

    def __post_init__(self) -> None:
        for name in (
            "eval_every",
            "checkpoint_every",
            "log_every",
            "batch_size",
            "grad_accum_steps",
            "length_buckets",
            "position_repeats",
        ):
            check_range(name, getattr(self, name), 1)
        if self.max_eval_examples is not None:
            check_range("max_eval_examples", self.max_eval_examples, 1)
        check_range("seed", self.seed, 0, 2**32 - 1)
        check_range("num_steps", self.num_steps, 0)
        check_range("num_epochs", self.num_epochs or 0, 0)
        if not self.num_steps and not self.num_epochs:
            raise ValueError("give num_steps or num_epochs")
        if self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"grad_accum_steps {self.grad_accum_steps} does not divide "
                f"batch_size {self.batch_size}"
            )

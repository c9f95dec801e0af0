"""Numbers that keep the random streams of a training step apart.

A stream is `jax.random.fold_in(key, number)`. Under the key of a step, or of a part of
its batch, an example draws from the stream of its own number, which is below 2³¹: int32
has no more. What is drawn for the batch as a whole takes its number from here.
"""

DROPOUT_BESIDE_MASKS = 2**31  # of an objective that also hides tokens
AUGMENTATION = 2**31 + 1  # in it, each example has a stream again

# Under the key by which a model drops: the encoder splits this key, and the layers of a
# head that drop again take a stream of it.
HEAD_DROPOUT = 2**31

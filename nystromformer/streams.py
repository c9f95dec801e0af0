"""Numbers that keep the random streams of a training step apart.

A stream is `jax.random.fold_in(key, number)`. Under the key of a step, or of a part of
its batch, an example draws from the stream of its own number, which is below 2³¹: int32
has no more. What is drawn for the batch as a whole takes its number from here.
"""

# Under the key of the seed, all training steps draw from this stream. `nnx.Rngs` folds
# 0, 1, 2, … into the same key for the parameters, so that the second of them is drawn
# from the key of the steps. This is harmless. A different number would draw different
# dropout, and change every run on record.
STEPS = 1

# An objective that masks tokens draws the masked positions from the streams of the
# examples. Its dropout takes this stream.
DROPOUT_BESIDE_MASKS = 2**31
# Augmentation takes this stream, and folds in the number of each example.
AUGMENTATION = 2**31 + 1

# The encoder splits the key by which a model drops. A head that also drops takes this
# stream of that key. Its number may equal one from above, since the key is different.
HEAD_DROPOUT = 2**31

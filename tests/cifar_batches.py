"""Tiny batches of CIFAR-10 in both official formats."""

import io
import pickle

import numpy as np

BATCH_SIZE = 20
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Python2Pickler(pickle._Pickler):
    """Protocol 2 as Python 2 wrote it: its str, which is bytes here."""

    def save_str(self, text):
        text = text if isinstance(text, bytes) else text.encode()
        self.write(pickle.BINSTRING + len(text).to_bytes(4, "little") + text)

    dispatch = pickle._Pickler.dispatch | {bytes: save_str, str: save_str}


def changed(**changes):
    """A pickled batch of which something is otherwise."""
    batch = {"labels": [1] * BATCH_SIZE, "data": BATCHES["test_batch"][0]} | changes
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(batch)
    return buffer.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def make_batches():
    rng = np.random.default_rng(0)
    labels = np.arange(BATCH_SIZE) % 10
    return {
        name: (
            rng.integers(0, 256, (BATCH_SIZE, 3072)).astype(np.uint8),
            rng.permutation(labels),
        )
        for name in NAMES
    }


BATCHES = make_batches()


def as_binary(batches=BATCHES):
    files = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    for name, (rgb, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), rgb], axis=1)
        files[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    return files


def as_pickles(batches=BATCHES):
    files = {"cifar-10-batches-py/batches.meta": b"not read"}
    for name, (rgb, labels) in batches.items():
        content = changed(batch_label=name, labels=labels.tolist(), data=rgb)
        files[f"cifar-10-batches-py/{name}"] = content
    return files

"""The names and shapes of tensors in the files of transformers, beside ours.

BERT, RoBERTa and Nyströmformer give the parts of their encoders the same names. Their
files differ in a prefix, in the heads, and in rows of positions that no token reads.

Letters: N heads, K size of the convolution's kernel.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Tensors = dict[str, np.ndarray]  # name -> tensor

# The tables have our names on the left and the published ones on the right.
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
EMBEDDINGS = {
    "encoder.embedding.embedding": WORDS,
    "encoder.positions": POSITIONS,
    "encoder.token_types": "embeddings.token_type_embeddings.weight",
}
EMBEDDING_NORM = {"encoder.embedding_norm": "embeddings.LayerNorm"}
MODULES_OF_A_BLOCK = {
    "attention.project": (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ),
    "attention.attention": ("attention.self.conv",),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "mlp.expand": ("intermediate.dense",),
    "mlp.contract": ("output.dense",),
    "mlp_norm": ("output.LayerNorm",),
}
PARAMETERS = {
    "kernel": "weight",
    "conv_kernel": "weight",
    "scale": "weight",
    "bias": "bias",
}
# The endings of the first BERT files, on the left.
OLD_ENDINGS = {
    ".LayerNorm.gamma": ".LayerNorm.weight",
    ".LayerNorm.beta": ".LayerNorm.bias",
}


class Layout(NamedTuple):
    """The names and conventions in the files of one architecture.

    Attributes:
      base: the prefix of the encoder's tensors in a file with a head. A file of an
        encoder alone has no prefix.
      heads: our module of a head -> the published one.
      decoder: the prefix of the head that predicts tokens.
      activation: the activation of the classification head, see `FirstTokenClassifier`.
      default_norm_epsilon: the epsilon of LayerNorm if config.json has none.
      decoder_gelu: the GELU of the head that predicts tokens, "erf" or "tanh", as in
        `EncoderConfig.gelu`; None takes the encoder's.
      unused: prefixes of tensors that belong to heads we do not load.
      num_reserved_positions: the first rows of the table of positions, which no token
        reads.
      counts_reserved: whether max_position_embeddings counts these rows.
    """

    base: str
    heads: Mapping[str, str]
    decoder: str
    activation: str
    default_norm_epsilon: float
    decoder_gelu: str | None = None
    unused: tuple[str, ...] = ()
    num_reserved_positions: int = 0
    counts_reserved: bool = False

    @property
    def positions(self) -> str:
        """The name of the table of positions."""
        return self.base + POSITIONS

    @property
    def copies(self) -> dict[str, str]:
        """Second name of a tensor -> its first. Some files hold it under both."""
        return {
            f"{self.decoder}.decoder.weight": self.base + WORDS,
            f"{self.decoder}.decoder.bias": f"{self.decoder}.bias",
        }

    def is_of_encoder(self, published_name: str) -> bool:
        """Whether a tensor belongs to the encoder, and so to a model with any head."""
        return published_name.startswith(
            (f"{self.base}embeddings.", f"{self.base}encoder.")
        )

    def is_of_other_head(self, published_name: str) -> bool:
        """Whether a tensor belongs to a head that we do not load."""
        return published_name.startswith(self.unused)

    def is_copy(self, published_name: str) -> bool:
        """Whether a name is the second one of a tensor."""
        return published_name in self.copies

    def is_convolution(self, published_name: str) -> bool:
        """Whether a tensor is the kernel of a layer's convolution of V."""
        return ".attention.self.conv." in published_name

    def published_names(self, name: str) -> list[str]:
        """The published tensors of one of our arrays.

        They are three for the projections of queries, keys and values.

        Args:
          name: our name in a model with a head: "encoder.blocks.0.mlp.expand.kernel".
        """
        if name in EMBEDDINGS:
            return [self.base + EMBEDDINGS[name]]
        if name == "bias":
            return [f"{self.decoder}.bias"]
        module, _, parameter = name.rpartition(".")
        ending = PARAMETERS[parameter]
        if module in EMBEDDING_NORM:
            return [f"{self.base}{EMBEDDING_NORM[module]}.{ending}"]
        if module in self.heads:
            return [f"{self.heads[module]}.{ending}"]
        _, _, number, module_of_block = module.split(".", 3)
        return [
            f"{self.base}encoder.layer.{number}.{published_module}.{ending}"
            for published_module in MODULES_OF_A_BLOCK[module_of_block]
        ]

    def from_published(self, name: str, tensors: Tensors) -> np.ndarray:
        """Makes one of our arrays of the published tensors.

        PyTorch's linear layers are [out, in], ours [in, out], and queries, keys and
        values are one product here. The kernel of the convolution is [N, 1, K, 1] there
        and [K, N] here.
        """
        parts = [tensors[published] for published in self.published_names(name)]
        if name.endswith(".conv_kernel"):
            parts = [part[:, 0, :, 0].T for part in parts]
        elif name.endswith(".kernel"):
            parts = [part.T for part in parts]
        return np.concatenate(parts, axis=-1)

    def to_published(self, arrays: Tensors) -> Tensors:
        """The inverse of `from_published` for all arrays, without reserved rows."""
        tensors = {}
        for name, array in arrays.items():
            names = self.published_names(name)
            for published_name, part in zip(
                names, np.split(array, len(names), axis=-1), strict=True
            ):
                if name.endswith(".conv_kernel"):
                    tensors[published_name] = part.T[:, None, :, None]
                elif name.endswith(".kernel"):
                    tensors[published_name] = part.T
                else:
                    tensors[published_name] = part
        return tensors


# By the model_type of config.json.
LAYOUTS = {
    "nystromformer": Layout(
        base="nystromformer.",
        heads={
            "transform": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "pooler": "classifier.dense",
            "out": "classifier.out_proj",
        },
        decoder="cls.predictions",
        activation="gelu",
        default_norm_epsilon=1e-5,
        num_reserved_positions=2,
    ),
    "bert": Layout(
        base="bert.",
        heads={
            "transform": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "pooler": "bert.pooler.dense",
            "out": "classifier",
        },
        decoder="cls.predictions",
        activation="tanh",
        default_norm_epsilon=1e-12,
        unused=("bert.pooler.", "cls.seq_relationship."),
    ),
    "roberta": Layout(
        base="roberta.",
        heads={
            "transform": "lm_head.dense",
            "norm": "lm_head.layer_norm",
            "pooler": "classifier.dense",
            "out": "classifier.out_proj",
        },
        decoder="lm_head",
        activation="tanh",
        default_norm_epsilon=1e-12,
        decoder_gelu="erf",  # transformers does not read hidden_act there.
        unused=("roberta.pooler.",),
        num_reserved_positions=2,
        counts_reserved=True,
    ),
}

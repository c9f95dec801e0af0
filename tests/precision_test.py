"""The precision of products: full in the core on every platform, else as asked for."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer import factors, landmarks, nystrom, pinv
from nystromformer.attention import ATTENTIONS
from nystromformer.attention.performer import draw_projection
from nystromformer.attention.reformer import hash_buckets, random_rotations
from nystromformer.dot_product import attend
from nystromformer.dropout import dropout
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.precision import tensor_core_precision
from tests.attention.cases import MASK, make, normal, random_qkv
from tests.jaxpr import equations

HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
FULL = {HIGHEST, tensor_core_precision(jnp.float32)}
# Tokens, the size of a head, and landmarks.
S = 67
H = 5
M = 7
VALID = jnp.arange(S) < 41
KEY = jax.random.key(0)
ROTATIONS = random_rotations(KEY, (1, 2, 9, H))[0]
ENCODER = Encoder(
    EncoderConfig(vocab_size=9, max_length=S, num_layers=1, attention="identity"),
    rngs=nnx.Rngs(0),
)


def precisions(function, *args):
    """The precisions of all products, in the branches of all platforms."""
    return [
        equation.params["precision"]
        for equation in equations(function, *args)
        if equation.primitive.name == "dot_general"
    ]


# Functions of query and key [S, H].
CORE = {
    "segment means": lambda q, k: nystrom.segment_means(q, M, VALID),
    "inverse": lambda q, k: pinv.iterative_pinv(q[:H]),
    "k-means": lambda q, k: landmarks.kmeans(q, M, VALID),
    "matrix": factors.softmax_matrix,
    "factors": lambda q, k: factors.nystrom_factors(q, k, VALID, num_landmarks=M),
    "rows": lambda q, k: factors.nystrom_rows(q, k, [2, 0], VALID, num_landmarks=M),
    "buckets": lambda q, k: hash_buckets(k, VALID, ROTATIONS, bucket_size=8),
    "projection": lambda q, k: draw_projection(KEY, num_features=8, head_dim=H),
    "positions": lambda q, k: ENCODER._embed(jnp.zeros((2, S), int), None, None),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CORE)
def test_products_of_the_core_are_full(name, dtype):
    query_and_key = [jnp.asarray(normal(seed, S, H), dtype) for seed in range(2)]
    product_precisions = precisions(CORE[name], *query_and_key)
    assert product_precisions
    assert set(product_precisions) <= FULL


@pytest.mark.parametrize("name", ATTENTIONS)
def test_products_of_an_attention_have_the_precision_that_is_asked_for(name):
    """The products of its gradient have it too."""

    def precisions_asked_for(precision):
        attend = partial(make(name), mask=MASK[:, None, None], precision=precision)
        gradient = jax.grad(lambda *qkv: attend(*qkv).sum(), argnums=(0, 1, 2))
        return precisions(gradient, *random_qkv())

    highest = precisions_asked_for("highest")
    by_default = precisions_asked_for(None)
    assert set(highest) <= FULL
    assert len(highest) == len(by_default)
    assert (None in by_default) == (name != "identity")


@pytest.mark.parametrize(
    ("capability", "is_before_ampere"), [("7.5", True), ("10.0", False)]
)
def test_tensor_core_precision_is_of_ampere_and_later(
    monkeypatch, capability, is_before_ampere
):
    gpu = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert (tensor_core_precision(jnp.float32) == "highest") == is_before_ampere


@pytest.mark.parametrize(("platform", "products"), [("cuda", 2), ("tpu", 0)])
def test_what_depends_on_the_platform_lowers_with_its_gradient(platform, products):
    """The function is under vmap; no such device is needed."""

    def total(x, key):
        landmarks = dropout(nystrom.segment_means(x, 2)[0], 0.5, key)
        return attend(landmarks, x, x, are_keys_shared=True).sum()

    x = jnp.ones((3, 7, 5))
    keys = jax.random.split(jax.random.key(1), 3)
    gradient = jax.jit(jax.vmap(jax.value_and_grad(total)))
    lowered = gradient.trace(x, keys).lower(lowering_platforms=(platform,))
    # Forward and gradient, each with the six products of bfloat16 parts.
    assert lowered.as_text().count("num_primitive_operations = 6") == products

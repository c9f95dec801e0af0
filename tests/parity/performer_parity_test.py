"""Performer against the package performer-pytorch, with its projection copied.

For the softmax kernel it adds ε = 1e-4 to every feature after scaling by the largest of
the batch; ours scales each feature by its own largest key and needs no ε, which shifts
the estimate: with ε = 0 both are the same, since the scales cancel. Masks it has none:
the published Nyströmformer's code gives it queries and keys that are scaled already,
and padded keys and values as zeros. The version is one of that time: later ones take
the largest key of each head, without its gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.performer import RandomProjection
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.qr is deprecated:UserWarning"),
]

B, L, N, H, R = 3, 41, 2, 5, 17


@pytest.fixture(scope="module")
def package():
    reason = "parity needs performer-pytorch"
    return pytest.importorskip("performer_pytorch.performer_pytorch", reason=reason)


def inputs(scale):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(scale * rng.normal(size=(B, N, L, H))) for _ in range(3)]


def their_softmax(package, tensors, projection):
    query, key, value = tensors
    query, key = (
        package.softmax_kernel(
            x, projection_matrix=projection, is_query=is_query, eps=0
        )
        for x, is_query in ((query, True), (key, False))
    )
    return package.linear_attention(query, key, value).numpy()


@pytest.mark.parametrize("scale", [0.1, 1, 4])
def test_performer_is_theirs_without_epsilon(package, scale):
    torch.manual_seed(0)
    projection = package.gaussian_orthogonal_random_matrix(R, H)
    tensors = inputs(scale)
    attention = make("performer", N, H, L, num_features=R)
    attention.projection = RandomProjection(jnp.float32(projection.numpy()))
    qkv = (jnp.float32(x.transpose(1, 2).numpy()) for x in tensors)
    actual = np.asarray(attention(*qkv)).swapaxes(1, 2)
    expected = their_softmax(package, tensors, projection)
    assert relative_error(actual, expected) < TOLERANCE["float32"]


def test_performer_published_kernel_and_its_gradient_are_theirs(
    package,
):
    """Examples and heads of different scale: theirs has one largest key for all."""
    torch.manual_seed(0)
    module = package.FastAttention(H, nb_features=R).double()
    mask = np.arange(L) < np.array([[L - 9], [L], [2]])
    scale = torch.tensor([0.2, 1.0, 3.0])[:, None, None, None]
    scale = scale * torch.tensor([1.0, 0.5])[:, None, None]
    valid = torch.from_numpy(mask)[:, None, :, None]
    tensors = [(x * scale).requires_grad_() for x in inputs(1)]
    query, key, value = tensors
    out = module(query / H**0.25, key / H**0.25 * valid, value * valid) * valid
    expected = [out, *torch.autograd.grad(out.square().sum(), tensors)]

    def attend(*qkv):
        attention = make("performer", N, H, L, num_features=R, kernel="published")
        drawn = jnp.asarray(module.projection_matrix.numpy())
        attention.projection = RandomProjection(drawn)
        return attention(*qkv, mask=mask[:, None, None]) * mask[:, :, None, None]

    with jax.enable_x64(True):
        qkv = [jnp.asarray(x.detach().transpose(1, 2).numpy()) for x in tensors]
        attended, backward = jax.vjp(attend, *qkv)
        actual = [attended, *backward(2 * attended)]
    for a, e in zip(actual, expected, strict=True):
        theirs = e.detach().transpose(1, 2).numpy()
        assert relative_error(a, theirs) < TOLERANCE["float64"]

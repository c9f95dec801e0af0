"""The precision that gives float32's accuracy, by the device."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from nystromformer.precision import tensor_core_precision


@pytest.mark.parametrize(
    ("capability", "is_before_ampere"), [("7.5", True), ("10.0", False)]
)
def test_tensor_core_precision_is_of_ampere_and_later(
    monkeypatch, capability, is_before_ampere
):
    gpu = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert (tensor_core_precision(jnp.float32) == "highest") == is_before_ampere

"""Options of attentions, their defaults, and the table of attentions."""

import dataclasses
import inspect
import runpy
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

from configs import listops
from nystromformer.attention import (
    ATTENTIONS,
    CONFIG_KEYS,
    check_attention,
    find_attention,
    print_attentions,
    register_attention,
)
from nystromformer.attention.base import Attention
from nystromformer.attention.nystrom import NystromAttention, nystrom_attention
from nystromformer.config import AttentionConfig
from tests.attention.cases import make, random_qkv


class Shifted(Attention):
    """Each token gets its neighbour's value: an attention of another package."""

    self_attention_only = True

    def __init__(self, *, by: int = 1, **common):
        super().__init__(**common)
        self.by = by

    def attend(self, query, key, value, mask, precision):
        return jnp.roll(value, self.by, axis=0)


@pytest.fixture
def registered_shifted():
    register_attention("shifted", Shifted)
    yield
    del ATTENTIONS["shifted"]


def test_register_attention_adds_one_of_another_package(registered_shifted):
    query, key, value = random_qkv(13)
    shifted = make("shifted", by=2)
    np.testing.assert_array_equal(shifted(query, key, value), jnp.roll(value, 2, 1))


def test_register_attention_takes_a_class_again(registered_shifted):
    """A config imports its file once more, which makes another class of that name."""
    same_name = type("Shifted", (Shifted,), {"__module__": "config_of_it"})
    register_attention("shifted", same_name)
    assert find_attention("shifted") is same_name


@pytest.mark.parametrize(
    "cls", [type("Other", (Shifted,), {}), Attention, find_attention("linear")]
)
def test_register_attention_rejects_a_name_that_is_taken(registered_shifted, cls):
    with pytest.raises(ValueError, match="'shifted' is taken"):
        register_attention("shifted", cls)
    assert find_attention("shifted") is Shifted


def write_attention(path):
    """The class of an attention `Mine` that is written in this file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "from nystromformer.attention.base import Attention\n"
        "class Mine(Attention):\n"
        "    def attend(self, query, key, value, mask, precision):\n"
        "        return value\n"
    )
    return runpy.run_path(str(path))["Mine"]


def test_register_attention_goes_by_the_file_of_a_class(tmp_path):
    first_class = write_attention(tmp_path / "first.py")
    class_elsewhere = write_attention(tmp_path / "folder" / "first.py")
    other_class = write_attention(tmp_path / "other.py")
    try:
        register_attention("mine", first_class)
        register_attention("mine", class_elsewhere)
        with pytest.raises(ValueError, match="'mine' is taken"):
            register_attention("mine", other_class)
        assert find_attention("mine") is class_elsewhere
    finally:
        del ATTENTIONS["mine"]


def test_register_attention_takes_annotations_for_type_checkers_alone(tmp_path):
    """As linters rewrite them; types that the module knows are checked."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from nystromformer.attention.base import Attention\n"
        "if TYPE_CHECKING:\n"
        "    from collections.abc import Sequence\n"
        "    from typing import Unpack\n"
        "    from nystromformer.attention.options import CommonArguments\n"
        "class Mine(Attention):\n"
        "    def __init__(self, *, by: int = 1, sizes: Sequence[int] = (),\n"
        "                 **common: Unpack[CommonArguments]):\n"
        "        super().__init__(**common)\n"
    )
    try:
        register_attention("mine", runpy.run_path(str(path))["Mine"])
        check_attention("mine", {"by": 2, "sizes": (3, 4)})
        with pytest.raises(ValueError, match="by of Mine must be int, got 'two'"):
            check_attention("mine", {"by": "two"})
    finally:
        ATTENTIONS.pop("mine", None)


@pytest.mark.parametrize("option", CONFIG_KEYS)
def test_register_attention_rejects_an_option_that_is_a_key_of_every_config(option):
    source = f"def __init__(self, *, {option}=1, **common): pass"
    members = {}
    exec(source, members)
    cls = type("Mine", (Attention,), {"__init__": members["__init__"]})
    with pytest.raises(ValueError, match=f"Mine has an option '{option}', which is"):
        register_attention("mine", cls)


def test_keys_of_every_config_are_those_of_its_group():
    fields = dataclasses.fields(AttentionConfig)
    assert {field.name for field in fields} == set(CONFIG_KEYS)


def test_register_attention_rejects_unknown_paper_options(registered_shifted):
    wrong_class = type("Shifted", (Shifted,), {"paper_options": {"of": 2}})
    with pytest.raises(ValueError, match=r"Shifted has no option 'of'.*by"):
        register_attention("shifted", wrong_class)
    assert find_attention("shifted") is Shifted


class Fewer(NystromAttention):
    """The paper's, with other defaults."""

    self_attention_only: bool = True  # This is no option.

    def __init__(self, *, num_landmarks: int = 32, pinv: str = "exact", **common):
        super().__init__(num_landmarks=num_landmarks, pinv=pinv, **common)


class FewerStill(Fewer):
    paper_options = {"num_landmarks": 16}

    def __init__(self, *, landmark_seed: int = 3, conv_kernel_size: int = 0, **common):
        super().__init__(
            landmark_seed=landmark_seed, conv_kernel_size=conv_kernel_size, **common
        )


class Fixed(NystromAttention):
    """Its `__init__` passes on no options of its parent."""

    def __init__(self, *, num_heads, head_dim, max_length, rngs, pinv: str = "exact"):
        super().__init__(
            num_heads=num_heads,
            head_dim=head_dim,
            max_length=max_length,
            rngs=rngs,
            pinv=pinv,
        )


def test_paper_options_are_those_of_configs():
    defaults = {name: x.default for name, x in NystromAttention.options().items()}
    assert defaults["conv_kernel_size"] == 0
    paper = NystromAttention.config_defaults()
    assert paper == defaults | {"conv_kernel_size": 35}
    assert list(paper) == list(defaults)


def test_defaults_of_a_subclass_are_those_of_its_configs():
    paper = NystromAttention.config_defaults()
    fewer_changes = {"num_landmarks": 32, "pinv": "exact"}
    assert Fewer.config_defaults() == paper | fewer_changes
    assert list(Fewer.options()) == list(NystromAttention.options())

    fewer_still_changes = {
        "num_landmarks": 16,
        "pinv": "exact",
        "landmark_seed": 3,
        "conv_kernel_size": 0,
    }
    assert FewerStill.config_defaults() == paper | fewer_still_changes
    assert Fixed.config_defaults() == {"pinv": "exact"}


def test_config_of_a_registered_subclass_starts_from_its_defaults():
    try:
        register_attention("fewer", Fewer)
        config = listops.get_config("fewer").attention.to_dict()
        defaults = Fewer.config_defaults()
        assert config == {"name": "fewer", "by_layer": None, **defaults}
        assert make("fewer", pinv_init="per_batch").num_landmarks == 32
    finally:
        del ATTENTIONS["fewer"]


def test_print_attentions_has_every_option_and_those_of_the_paper(capsys):
    print_attentions()
    lines = capsys.readouterr().out.splitlines()
    for name in ATTENTIONS:
        cls = find_attention(name)
        [position] = [i for i, x in enumerate(lines) if x.startswith(f"{name}: ")]
        for option, value in cls.init_defaults().items():
            assert f"{option}={value!r}" in lines[position]
        for option, value in cls.paper_options.items():
            assert f"in configs {option}={value!r}" in lines[position + 1]


def test_nystrom_attention_has_the_options_of_the_class():
    options = NystromAttention.options()
    # The function takes conv_kernel, the parameter itself.
    del options["conv_kernel_size"]
    arguments = inspect.signature(nystrom_attention, eval_str=True).parameters
    for name, option in options.items():
        assert arguments[name].default == option.default
        assert arguments[name].annotation == option.annotation


class Typed(Attention):
    """Options of more than plain types."""

    def __init__(
        self,
        *,
        kind: Literal["a", "b"] = "a",
        sizes: tuple[int, ...] = (1, 2),
        extra: Any = None,
        rate: float | None = None,
        untyped=None,
        **common,
    ):
        super().__init__(**common)


def test_check_options_accepts_the_types_that_an_option_may_have():
    Typed.check_options(Typed.config_defaults())
    Typed.check_options(
        {"kind": "b", "sizes": [3], "extra": "x", "rate": np.float32(2), "untyped": {}}
    )
    NystromAttention.check_options({"num_landmarks": np.int64(8)})


@pytest.mark.parametrize(
    ("name", "value"), [("kind", "c"), ("sizes", 3), ("rate", "2")]
)
def test_check_options_rejects_another_type(name, value):
    with pytest.raises(ValueError, match=f"{name} of Typed must be .*, got {value!r}"):
        Typed.check_options({name: value})


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("nystrom", {"num_landmarks": 0}, "num_landmarks.*got 0"),
        ("nystrom", {"conv_kernel_size": 4}, "conv_kernel_size.*odd.*got 4"),
        ("nystrom", {"landmark_padding": "even"}, "'mask', 'count'.*'even'"),
        ("nystrom", {"landmarks": "means"}, "segment_means.*random.*'means'"),
        (
            "nystrom",
            {"pinv": "exact", "pinv_kernel": True},
            "pinv_kernel=True .*pinv='exact': leave it out",
        ),
        ("nystrom", {"pinv": "svd"}, "iterative.*exact.*identity.*'svd'"),
        (
            "linformer",
            {"projection_dim": 68},
            "projection_dim.*at most 67 for max_length=67, got 68",
        ),
        (
            "longformer",
            {"window": 134},
            "window.*at most 132 for max_length=67, got 134",
        ),
        ("longformer", {"window": 7}, "window must be even.*got 7"),
        (
            "bigbird",
            {"block_size": 68},
            "block_size.*at most 67 for max_length=67, got 68",
        ),
        (
            "bigbird",
            {"num_random_blocks": 3},
            "at most 2, .* of block_size=.* in max_length=67, got 3: give a smaller",
        ),
        ("bigbird", {"num_random_blocks": -1}, "num_random_blocks.*at least 0, got"),
        ("reformer", {"bucket_size": 7}, "bucket_size must be even.*got 7"),
        (
            "reformer",
            {"bucket_size": 70},
            "bucket_size.*at most 68 for max_length=67, got 70",
        ),
        ("performer", {"num_features": 0}, "num_features.*got 0"),
        ("performer", {"kernel": "gauss"}, "softmax.*published.*'gauss'"),
        ("softmax", {"dropout_rate": 1.0}, r"dropout_rate.*1\.0"),
        ("nystrom", {"num_landmarks": 7.0}, "num_landmarks of Nystrom.*int.*7.0"),
        ("softmax", {"dropout_rate": True}, "dropout_rate of Softmax.*float.*True"),
        ("nistrom", {}, "'nistrom'.*nystrom.*softmax"),
        ("nystrom", {"landmark": 7}, "'landmark'.*num_landmarks.*landmark_padding"),
        ("identity", {"x": 1}, "Identity.*'x'.*none"),
    ],
)
def test_make_attention_rejects_invalid_options(name, options, text):
    with pytest.raises(ValueError, match=text):
        make(name, **options)


def test_make_attention_takes_the_largest_options():
    make("longformer", window=132)
    make("bigbird", block_size=4, num_random_blocks=17)
    make("reformer", bucket_size=68)
    make("linformer", projection_dim=67)
    make("softmax", dropout_rate=0)

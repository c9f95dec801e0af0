"""Each option of a config reaches the object that it is for.

What an Experiment makes is compared with what one would make by hand. The tables have a
row for every key, so that a new option needs one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_tasks.task import get_task
from nystromformer import heads
from nystromformer.attention import ATTENTIONS, make_attention
from nystromformer.config import ModelConfig, OptimizerConfig, key_types
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.augmentation import flip, shuffle_arguments
from nystromformer.training.data import HostSplit
from nystromformer.training.denoising import ClassificationDenoising
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.positions import Positions
from nystromformer.training.step import split_weights, train_step
from tests.jaxpr import equations
from tests.small import BUILT_IN_ATTENTIONS, make_config
from tests.training.conftest import make_split


def form(graphdef, weights):
    """What a model is but for its numbers: modules, their options, all shapes."""
    return graphdef, jax.tree.map(lambda x: (x.shape, x.dtype), weights)


def form_made(config):
    experiment = Experiment(config)
    return form(experiment.graphdef, experiment.weight_shapes)


def form_by_hand(make):
    return form(*split_weights(nnx.eval_shape(lambda: make(nnx.Rngs(0)))))


def prefixed(group, options):
    """The changes of `make_config`, as in model__pooling."""
    return {f"{group}__{key}": value for key, value in options.items()}


def encoder_config(**changes):
    """The paper's encoder of ListOps, of one layer."""
    options = {
        "vocab_size": 16,
        "max_length": 2000,
        "num_layers": 1,
        "num_heads": 2,
        "model_dim": 64,
        "mlp_dim": 128,
        "attention": "nystrom",
        "attention_options": ATTENTIONS["nystrom"].config_defaults(),
        "dropout_rate": 0.1,
    }
    return EncoderConfig(**options | changes)


def classifier(pooling="mean", **changes):
    config = encoder_config(**changes)
    options = {"num_classes": 10, "pooling": pooling}
    return lambda rngs: heads.SequenceClassifier(config, **options, rngs=rngs)


# Another value than the paper's for every option of the model.
MODEL = {
    "num_layers": 3,
    "num_heads": 4,
    "model_dim": 32,
    "mlp_dim": 96,
    "dropout_rate": 0.25,
    "norm": "post",
    "norm_epsilon": 1e-12,
    "gelu": "tanh",
    "num_token_types": 2,
    "embedding_norm": True,
    "ignore_id": 7,
    "positions": "rotary",
    "short_conv": 3,
    "remat": "block",
    "dtype": "bfloat16",
    "pooling": "max",
}


def test_the_table_has_every_option_of_the_model():
    assert MODEL.keys() == key_types(ModelConfig).keys()


@pytest.mark.parametrize("key", MODEL)
def test_an_option_of_the_model_reaches_it(key):
    options = {"num_layers": 1, key: MODEL[key]}
    by_hand = options | ({"dtype": jnp.dtype("bfloat16")} if key == "dtype" else {})
    found = form_made(make_config(**prefixed("model", options)))
    assert found == form_by_hand(classifier(**by_hand))
    assert found != form_by_hand(classifier())


# Another value than the paper's for every option of every attention.
OPTIONS = {
    "nystrom": {
        "num_landmarks": 32,
        "num_pinv_iters": 4,
        "conv_kernel_size": 5,
        "landmark_padding": "count",
        "landmarks": "random",
        "landmark_seed": 3,
        "pinv": "exact",
        "pinv_init": "per_batch",
    },
    "softmax": {"dropout_rate": 0.3},
    "bigbird": {"block_size": 16, "num_random_blocks": 2, "seed": 3},
    "efficient": {},
    "linear": {},
    "linformer": {"projection_dim": 16, "sharing": "layerwise_per_head"},
    "longformer": {"window": 16},
    "performer": {"num_features": 16, "kernel": "published", "redraw_features": True},
    "reformer": {"num_hashes": 3, "bucket_size": 16, "seed": 3, "lsh_scope": "chunk"},
    "identity": {},
}


def test_the_table_has_every_option_of_every_attention():
    names = {name: {*options} for name, options in OPTIONS.items()}
    assert names == {
        name: {*cls.options()} for name, cls in BUILT_IN_ATTENTIONS.items()
    }
    for name, cls in BUILT_IN_ATTENTIONS.items():
        assert not OPTIONS[name].items() & cls.config_defaults().items()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("changed", [False, True])
def test_the_options_of_the_attention_reach_it_in_every_layer(name, changed):
    """Where [CLS] stands in front a sequence is longer by one."""
    settings = prefixed("attention", OPTIONS[name] if changed else {})
    settings["model__pooling"] = "cls_token"
    experiment = Experiment(make_config(name, **settings))
    model = nnx.eval_shape(lambda: experiment.make_model(nnx.Rngs(0)))
    options = {
        **ATTENTIONS[name].config_defaults(),
        **(OPTIONS[name] if changed else {}),
    }
    sizes = {"num_heads": 2, "head_dim": 32, "max_length": 2001}

    def by_hand(rngs):
        return make_attention(name, **sizes, rngs=rngs, **options)

    for block in model.encoder.blocks:
        found = form(*split_weights(block.attention.attention))
        assert found == form_by_hand(by_hand)


def test_the_attention_of_a_layer_reaches_it():
    """With the options with which configs start, where it is another one."""
    changes = {"attention__by_layer": "0=softmax 2.num_landmarks=8"}
    found = form_made(make_config(model__num_layers=3, **changes))
    dropout_rate = ATTENTIONS["softmax"].config_defaults()["dropout_rate"]
    by_layer = {
        0: {"name": "softmax", "dropout_rate": dropout_rate},
        2: {"num_landmarks": 8},
    }
    by_hand = {"num_layers": 3, "attention_by_layer": by_layer}
    assert found == form_by_hand(classifier(**by_hand))
    assert found != form_by_hand(classifier(num_layers=3))


def pair_classifier(config, rngs):
    return heads.PairClassifier(config, num_classes=2, pooling="max", rngs=rngs)


def bert_classifier(config, rngs):
    """Of MNLI's three classes, with BERT's pooler."""
    options = {"num_classes": 3, "activation": "tanh"}
    return heads.FirstTokenClassifier(config, **options, rngs=rngs)


def two_classes(config, rngs):
    return heads.SequenceClassifier(config, num_classes=2, rngs=rngs)


def ten_classes(config, rngs):
    return heads.SequenceClassifier(config, num_classes=10, rngs=rngs)


def each_token(config, rngs):
    return heads.TokenClassifier(config, num_classes=30, rngs=rngs)


def last_of_thirty(config, rngs):
    options = {"num_classes": 30, "pooling": "last"}
    return heads.SequenceClassifier(config, **options, rngs=rngs)


def denoising(config, rngs):
    return heads.DenoisingClassifier(config, num_classes=10, rngs=rngs)


def denoising_pair(config, rngs):
    options = {"num_classes": 2, "pooling": "max"}
    return heads.DenoisingPairClassifier(config, **options, rngs=rngs)


def masked(config, rngs):
    return heads.MaskedLanguageModel(config, rngs=rngs)


def masked_order(config, rngs):
    return heads.MaskedOrderModel(config, rngs=rngs)


BERT = {"norm": "post", "gelu": "tanh", "embedding_norm": True, "num_token_types": 2}
BERT |= {"separator": 3}  # [SEP]
# 20 keys, 30 values, 5 distractors and padding.
RECALL = {"task__num_keys": 20, "task__num_values": 30, "task__num_distractors": 5}
RECALL |= {"task__max_length": 64, "task__num_pairs": 8, "task__num_queries": 4}
RECALL |= {"model__dropout_rate": 0.1, "model__short_conv": 0}
# A task and presets, and changes, with the model that they make and what its encoder
# has beside the sizes and the attention below. Ids: bytes are 256, before them padding
# or five special tokens; where there is no [MASK] an embedding of it is added.
MODELS = [
    ("listops", "", {}, ten_classes, {"vocab_size": 16, "max_length": 2000}),
    ("image", "", {}, ten_classes, {"vocab_size": 256, "max_length": 1024}),
    ("pathfinder", "", {}, two_classes, {"vocab_size": 256, "max_length": 1024}),
    ("text", "", {}, two_classes, {"vocab_size": 257, "max_length": 4000}),
    (
        *("retrieval", "", {"model__pooling": "max"}),
        *(pair_classifier, {"vocab_size": 257, "max_length": 4000}),
    ),
    (
        *("glue", "quick,mnli", {}),
        *(bert_classifier, BERT | {"vocab_size": 261, "max_length": 128}),
    ),
    (
        *("corpus", "quick", {"task__vocab_size": 300}),
        *(masked_order, BERT | {"vocab_size": 300, "max_length": 64}),
    ),
    (
        *("corpus", "quick", {"objective__name": "mlm"}),
        *(masked, BERT | {"vocab_size": 8192, "max_length": 64}),
    ),
    ("recall", "", RECALL, each_token, {"vocab_size": 56, "max_length": 64}),
    (
        *("recall", "one_query", RECALL | {"task__num_queries": 1}),
        *(last_of_thirty, {"vocab_size": 56, "max_length": 64}),
    ),
    (
        *("listops", "", {"objective__name": "classification_denoising"}),
        *(denoising, {"vocab_size": 17, "max_length": 2000}),
    ),
    (
        "retrieval",
        "",
        {"objective__name": "classification_denoising", "model__pooling": "max"},
        denoising_pair,
        {"vocab_size": 258, "max_length": 4000},
    ),
    ("listops", "quick,pretrain", {}, masked, {"vocab_size": 17, "max_length": 48}),
    ("image", "quick,pretrain", {}, masked, {"vocab_size": 257, "max_length": 1024}),
]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "mlp_dim": 16}


@pytest.mark.parametrize(("task", "presets", "changes", "make", "encoder"), MODELS)
def test_a_task_and_an_objective_have_their_model(
    task, presets, changes, make, encoder
):
    made = make_config(
        f"identity,{presets}", task, **prefixed("model", SIZES), **changes
    )
    config = EncoderConfig(**SIZES, **encoder, attention="identity")
    assert form_made(made) == form_by_hand(lambda rngs: make(config, rngs))


# An objective and its options, on a task, and what they make.
OBJECTIVES = [
    ("listops", {}, Classification()),
    ("listops", {"f1": True}, Classification(f1=True)),
    ("listops", {"select": "f1"}, Classification(select="f1")),
    ("recall", {"name": "positions"}, Positions(num_labels=64)),
    (
        "listops",
        {
            "name": "classification_denoising",
            "denoising_weight": 0.5,
            "mlm_probability": 0.2,
            "corruption": "mask_only",
        },
        ClassificationDenoising(
            vocab_size=16,
            mask_token=16,
            denoising_weight=0.5,
            mlm_probability=0.2,
            corruption="mask_only",
        ),
    ),
    ("listops", {"name": "mlm"}, MaskedTokens(vocab_size=16, mask_token=16)),
    (
        *("listops", {"name": "mlm", "mlm_probability": 0.3}),
        MaskedTokens(vocab_size=16, mask_token=16, mlm_probability=0.3),
    ),
    (
        *("text", {"name": "mlm", "corruption": "mask_only"}),
        MaskedTokens(vocab_size=257, mask_token=257, corruption="mask_only"),
    ),
    (
        *("glue", {"name": "mlm"}),
        MaskedTokens(vocab_size=261, mask_token=4, special_tokens=(0, 1, 2, 3, 4)),
    ),
    (
        *("corpus", {"mlm_probability": 0.3}),
        MaskedOrder(
            vocab_size=30_000,
            mask_token=4,
            special_tokens=(0, 1, 2, 3, 4),
            mlm_probability=0.3,
        ),
    ),
]


@pytest.mark.parametrize(("task", "options", "expected"), OBJECTIVES)
def test_an_option_of_the_objective_reaches_it(task, options, expected):
    found = Experiment(
        make_config(task=task, **prefixed("objective", options))
    ).objective
    assert type(found) is type(expected)
    np.testing.assert_equal(vars(found), vars(expected))


# The task and the augmentations that are switched on, and what they do in their order.
AUGMENTATIONS = [
    ("image", ["flip_horizontal"], [(flip, {"axis": 1})]),
    ("pathfinder", ["flip_vertical"], [(flip, {"axis": 0})]),
    (
        *("pathfinder", ["flip_vertical", "flip_horizontal"]),
        [(flip, {"axis": 1}), (flip, {"axis": 0})],
    ),
    (
        *("listops", ["shuffle_arguments"]),
        [(shuffle_arguments, {"operators": range(1, 5), "close": 5})],
    ),
]


@pytest.mark.parametrize(("task", "names", "expected"), AUGMENTATIONS)
def test_an_augmentation_reaches_the_objective(task, names, expected):
    options = prefixed("train", dict.fromkeys(names, True))
    objective = Experiment(make_config(task=task, **options)).objective
    found = [(x.func, x.keywords) for x in objective.augmentations]
    assert found == expected
    assert type(objective.objective) is Classification


# Another value than the default for every option of the optimizer.
OPTIMIZER = {
    "learning_rate": 3e-3,
    "warmup_steps": 1,
    "weight_decay": 0.3,
    "b1": 0.5,
    "b2": 0.9,
    "eps": 0.1,
    "cycle_b1": True,
    "decay": "none",
}


def steps_of(optimizer):
    """What four steps of 0.1, 0.2, … as gradients make of a number."""
    theta = jnp.ones(1)
    state = optimizer.init(theta)
    path = []
    for gradient in (0.1, 0.2, 0.3, 0.4):
        updates, state = optimizer.update(jnp.full(1, gradient), state, theta)
        theta = theta + updates
        path.append(theta.item())
    return path


def test_the_table_has_every_option_of_the_optimizer():
    assert OPTIMIZER.keys() == key_types(OptimizerConfig).keys()


@pytest.mark.parametrize("key", OPTIMIZER)
def test_an_option_of_the_optimizer_reaches_it(key):
    """And so does the number of steps over which the rate decays."""
    base = {"warmup_steps": 2, "learning_rate": 1e-3}
    options = base | {key: OPTIMIZER[key]}
    config = make_config(**prefixed("optimizer", options), train__num_steps=4)
    found = steps_of(Experiment(config).make_programs().definition.optimizer)
    by_hand = make_optimizer(OptimizerConfig(**options), num_steps=4)
    assert found == steps_of(by_hand)
    assert found != steps_of(make_optimizer(OptimizerConfig(**base), num_steps=4))


def test_a_batch_is_cut_into_the_parts_and_lengths_of_the_config():
    """As the step that is compiled shows: a loop over parts, a branch for a length."""
    changes = {"train__grad_accum_steps": 4, "train__length_buckets": 5}
    changes |= prefixed("model", SIZES | {"dropout_rate": 0.0})
    experiment = Experiment(make_config("identity,quick", **changes))
    programs = experiment.make_programs()
    split = make_split(0, 32, experiment.task.max_length)
    given = programs.init.eval_shape(np.uint32(0)), HostSplit.from_split(split).put()
    step = functools.partial(train_step, programs.definition)
    found = [*equations(step, *given, np.arange(32))]
    loops = {eqn.params["length"] for eqn in found if eqn.primitive.name == "scan"}
    branches = {len(e.params["branches"]) for e in found if e.primitive.name == "cond"}
    assert 4 in loops
    assert 5 in branches


def test_an_option_of_the_task_reaches_it():
    options = {
        "max_length": 64,
        "num_train": 7,
        "num_validation": 5,
        "num_test": 3,
        "min_tokens": 10,
        "max_tokens": 60,
        "max_depth": 4,
        "max_args": 5,
        "seed": 9,
    }
    found = Experiment(make_config(**prefixed("task", options))).task
    assert found == get_task("listops", **options)
    assert {name: getattr(found, name) for name in options} == options

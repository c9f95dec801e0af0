"""Presets beside the paper's on the LRA (defaults_test), written out as published.

Each table has every key that its preset changes: a change that is not in it fails.
"""

import pytest

from configs.defaults import attention, model, objective, optimizer, train
from configs.plans import PLANS
from lra_tasks import LRA
from tests.defaults_test import flat
from tests.small import BUILT_IN_ATTENTIONS

# With which the paper's baselines, and the others, are trained and timed.
OF_ATTENTIONS = {
    "nystrom": {
        "num_landmarks": 64,
        "num_pinv_iters": 6,
        "conv_kernel_size": 35,
        "landmark_padding": "mask",
        "landmarks": "segment_means",
        "landmark_seed": 0,
        "pinv": "iterative",
        "pinv_init": "per_matrix",
        "fused": False,
    },
    "softmax": {"dropout_rate": 0.1, "fused": True},
    "linformer": {"projection_dim": 256, "sharing": "key_value"},
    "performer": {"num_features": 256, "kernel": "softmax", "redraw_features": False},
    "reformer": {"num_hashes": 2, "bucket_size": 64, "seed": 0, "lsh_scope": "bucket"},
    "longformer": {"window": 256},  # 257 tokens: 128 on each side, and itself
    "bigbird": {"block_size": 64, "num_random_blocks": 3, "seed": 0},
    "linear": {},
    "efficient": {},
    "identity": {},
}


def test_every_attention_has_the_options_of_the_papers_table():
    assert OF_ATTENTIONS.keys() == BUILT_IN_ATTENTIONS.keys()
    for name, options in OF_ATTENTIONS.items():
        for task in LRA:
            config = flat(task, name)
            found = {x: y for x, y in config.items() if x.startswith("attention.")}
            assert found == attention(name=name, by_layer=None, **options)


OF_ALL_TASKS = {  # beside the table of defaults_test
    **model(num_layers=2, num_heads=2, model_dim=64, mlp_dim=128, dropout_rate=0.1),
    **model(norm="pre", gelu="erf", embedding_norm=False, num_token_types=0),
    **model(pooling="mean", ignore_id=None, remat="none", dtype="float32"),
    **model(positions="learned", short_conv=0, norm_epsilon=1e-5),
    **optimizer(learning_rate=1e-4, decay="linear", weight_decay=0.0),
    **optimizer(b1=0.9, b2=0.999, eps=1e-6, cycle_b1=False),
    **train(seed=0, grad_accum_steps=1, length_buckets=1, num_epochs=None),
    **train(init_from=None, log_every=50),
    **train(flip_horizontal=False, flip_vertical=False, shuffle_arguments=False),
    **objective(name="classification", select=None),
}
TASKS_OWN = train(batch_size=0, num_steps=0, eval_every=0, checkpoint_every=0)
TASKS_OWN |= optimizer(warmup_steps=0)


def test_every_setting_of_a_task_of_the_lra_is_the_authors_or_in_their_table():
    for task in LRA:
        config = {
            key: value
            for key, value in flat(task, "").items()
            if key.startswith(("model.", "optimizer.", "train.", "objective."))
        }
        assert config.keys() == OF_ALL_TASKS.keys() | TASKS_OWN.keys()
        assert config.items() >= OF_ALL_TASKS.items()


def check(task, preset, expected, base="", arg="nystrom"):
    """Has the expected settings, and changes no others of the base."""
    found, before = (flat(task, f"{arg},{x}") for x in (preset, base))
    assert {key: found[key] for key in expected} == expected
    changed = {key for key, value in found.items() if before.get(key) != value}
    assert changed <= {"preset", *expected}


# Amos et al. 2023, for one GPU. Epochs and rates: of pre-training, of fine-tuning.
SELF_PRETRAINING = {
    # task: examples, share masked, (layers, width, heads, FFN), rates, epochs
    "listops": (96_000, 0.10, (6, 512, 8, 2048), (1e-3, 1e-4), (100, 100)),
    "text": (22_500, 0.15, (6, 512, 8, 2048), (5e-4, 1e-4), (32, 65)),
    "retrieval": (147_086, 0.15, (4, 128, 4, 512), (5e-3, 5e-4), (32, 32)),
    "image": (45_000, 0.50, (3, 64, 4, 128), (1e-3, 1e-3), (50, 200)),
    "pathfinder": (160_000, 0.50, (4, 128, 8, 128), (1e-3, 5e-4), (50, 200)),
}
MASKED = objective(name="mlm", corruption="mask_only")


@pytest.mark.parametrize("arg", ["nystrom", "softmax"])
@pytest.mark.parametrize("task", SELF_PRETRAINING)
def test_self_pretraining_is_the_papers_table(task, arg):
    examples, share, sizes, rates, epochs = SELF_PRETRAINING[task]
    num_layers, model_dim, num_heads, mlp_dim = sizes
    common = {
        **model(num_layers=num_layers, model_dim=model_dim),
        **model(num_heads=num_heads, mlp_dim=mlp_dim, dropout_rate=0.0),
        **model(pooling="max" if task == "image" else "mean"),
        **optimizer(warmup_steps=1_000, decay="none", weight_decay=0.0),
        **optimizer(b1=0.9, b2=0.999),
        **(attention(dropout_rate=0.0) if arg == "softmax" else {}),
        "train.num_steps": 0,
    }
    masked = MASKED | objective(mlm_probability=share)
    labels, fine_batch = objective(name="classification"), 50 if task == "image" else 32
    stages = {
        "pretrain": (32, rates[0], epochs[0], masked),
        "finetune": (fine_batch, rates[1], epochs[1], labels),
        "scratch_matched": (fine_batch, rates[1], sum(epochs), labels),
    }
    for preset, (batch_size, rate, num_epochs, learnt) in stages.items():
        own = train(batch_size=batch_size, num_epochs=float(num_epochs))
        own |= optimizer(learning_rate=rate) | learnt
        every = flat(task, preset)["train.eval_every"]  # an epoch, or nearly
        assert every == pytest.approx(examples / batch_size, rel=0.002)
        own |= train(eval_every=every, checkpoint_every=every)
        check(task, preset, common | own, arg=arg)


@pytest.mark.parametrize("task", SELF_PRETRAINING)
def test_self_pretraining_keeps_the_model_and_steps_of_quick(task):
    share, num_steps = SELF_PRETRAINING[task][1], flat(task, "quick")["train.num_steps"]
    masked = MASKED | objective(mlm_probability=share)
    check(task, "quick,pretrain", masked, base="quick")
    check(task, "quick,finetune", {}, base="quick")
    twice = train(num_steps=2 * num_steps)
    check(task, "quick,scratch_matched", twice, base="quick")


# Miralles-González et al. 2025, their public configs; the short convolution, the number
# of warm-up steps (a twentieth) and the weight of the denoising loss are ours.
MODERN = {
    # task: (layers, width, heads, FFN), rate, batch, epochs, dropout, decay, examples
    "listops": ((6, 80, 4, 160), 1e-3, 64, 80, 0.0, 0.01, 96_000),
    "text": ((4, 128, 8, 256), 4e-3, 32, 60, 0.1, 0.01, 22_500),
    "retrieval": ((6, 128, 4, 256), 1e-3, 64, 40, 0.1, 0.01, 147_086),
    "image": ((8, 160, 4, 320), 5e-4, 32, 200, 0.0, 0.0, 45_000),
    "pathfinder": ((6, 128, 4, 256), 1e-3, 128, 100, 0.0, 0.01, 320_000),
}
DENOISING = objective(
    name="classification_denoising",
    mlm_probability=0.3,
    denoising_weight=0.3,
    corruption="mask_or_random",
)
TECHNIQUES = {
    "listops": train(shuffle_arguments=True),
    "text": DENOISING | {"task.max_length": 2_048},
    "retrieval": DENOISING | {"task.max_length": 1_024},
    "image": train(flip_horizontal=True),
    "pathfinder": {
        **train(flip_horizontal=True, flip_vertical=True),
        "task.easier_share": 0.5,
    },
}


@pytest.mark.parametrize("task", MODERN)
def test_modern_is_the_table_of_its_paper(task):
    sizes, rate, batch_size, epochs, dropout, decay, examples = MODERN[task]
    num_layers, model_dim, num_heads, mlp_dim = sizes
    every = flat(task, "modern")["train.eval_every"]  # an epoch
    assert every == pytest.approx(examples / batch_size, rel=0.001)
    recipe = {
        **model(positions="rotary", short_conv=5, dropout_rate=dropout),
        **attention(conv_kernel_size=0),
        **optimizer(b1=0.9, b2=0.98, weight_decay=decay, decay="linear"),
        **TECHNIQUES[task],
    }
    full = {
        **recipe,
        **model(num_layers=num_layers, model_dim=model_dim),
        **model(num_heads=num_heads, mlp_dim=mlp_dim, pooling="mean"),
        **optimizer(learning_rate=rate, warmup_steps=epochs * every // 20),
        **train(num_steps=0, num_epochs=float(epochs), batch_size=batch_size),
        **train(eval_every=every, checkpoint_every=every),
    }
    check(task, "modern", full)
    assert flat(task, "softmax,modern")["attention.dropout_rate"] == 0.0
    quick = {k: x for k, x in recipe.items() if k != "task.max_length"}
    quick.pop("task.easier_share", None)
    quick |= optimizer(learning_rate=2e-3)
    quick |= train(num_steps=2_000) if task == "text" else {}
    check(task, "quick,modern", quick, base="quick")


def encoder_of_text(num_layers, num_heads, model_dim):
    """BERT's in one size: the FFN is four times as wide as the model."""
    return {
        **model(num_layers=num_layers, num_heads=num_heads, model_dim=model_dim),
        **model(mlp_dim=4 * model_dim, norm="post", gelu="tanh", dropout_rate=0.1),
        **model(embedding_norm=True, num_token_types=2, pooling="bert_pooler"),
        **attention(conv_kernel_size=33, num_landmarks=64),
    }


BERT_SMALL, BERT_BASE = encoder_of_text(4, 8, 512), encoder_of_text(12, 12, 768)
BERT_QUICK = encoder_of_text(4, 2, 128)
ADAM = optimizer(b1=0.9, b2=0.999, weight_decay=0.01, decay="linear")
PRETRAINING = {
    "task.max_length": 512,
    "task.vocab_size": 30_000,
    **objective(name="mlm_sop", mlm_probability=0.15, corruption="bert"),
    **ADAM,
    **optimizer(learning_rate=1e-4, warmup_steps=10_000),
    **train(batch_size=256, num_steps=100_000),
}
LONGER = {
    "task.max_length": 1_024,
    **optimizer(learning_rate=1e-5, warmup_steps=0),
    **train(batch_size=128, num_steps=40_000),
}


def test_pretraining_of_text_is_the_papers():
    """BERT-small and -base, and 1,024 tokens as in its supplement."""
    every = train(eval_every=1_000, checkpoint_every=1_000)
    check("corpus", "paper", PRETRAINING | BERT_SMALL | every)
    base = BERT_BASE | train(num_steps=500_000)
    check("corpus", "bert_base", base)
    assert flat("corpus", "bert_base").items() >= ADAM.items()
    check("corpus", "bert_base,seq1024", BERT_BASE | LONGER)
    check("corpus", "seq1024", LONGER)


FINE_TUNING = {
    **BERT_BASE,
    "task.max_length": 512,
    **optimizer(learning_rate=3e-5, weight_decay=0.01, warmup_steps=0, decay="none"),
    **train(batch_size=32, num_epochs=4.0, num_steps=0),
}
GLUE = {  # preset: subset, training examples, what MRPC and QQP have beside
    "": ("sst2", 67_349, {}),
    "mrpc": ("mrpc", 3_668, objective(f1=True)),
    "qnli": ("qnli", 104_743, {}),
    "qqp": ("qqp", 363_846, objective(select="f1")),
    "mnli": ("mnli", 392_702, {}),
}


def half_an_epoch(config, num_train):
    """The intervals of a config: half an epoch of nine tenths of the examples."""
    every = config["train.eval_every"]
    assert every == pytest.approx(0.9 * num_train / 32 / 2, abs=1)
    return train(eval_every=every, checkpoint_every=every)


@pytest.mark.parametrize("preset", GLUE)
def test_fine_tuning_on_glue_is_the_papers(preset):
    """And `warmup`'s other schedule; `quick` keeps all but rate and size."""
    subset, num_train, also = GLUE[preset]
    own = {
        "task.subset": subset,
        **also,
        **half_an_epoch(flat("glue", preset), num_train),
    }
    check("glue", preset, FINE_TUNING | own)
    assert flat("glue", preset)["objective.name"] == "classification"
    warmup = optimizer(warmup_steps=100, decay="linear")
    check("glue", f"{preset},warmup", warmup, base=preset)
    quick = BERT_QUICK | {"task.max_length": 128} | optimizer(learning_rate=1e-4)
    check("glue", f"{preset},seq1024", {"task.max_length": 1_024}, base=preset)
    check("glue", f"quick,{preset}", quick | attention(num_landmarks=32), base=preset)


def test_fine_tuning_on_imdb_is_that_on_glue():
    own = half_an_epoch(flat("text", "subwords"), 25_000)
    byte = {"task.tokenizer": "byte"}  # or a pre-training run's, by the command line
    check("text", "subwords", FINE_TUNING | own | byte)
    quick = BERT_QUICK | {"task.max_length": 256} | optimizer(learning_rate=1e-4)
    quick |= attention(num_landmarks=32)
    check("text", "quick,subwords", quick, base="subwords")
    longer = {"task.max_length": 1_024}
    check("text", "subwords,seq1024", longer, base="subwords")
    for task, preset, length in (("glue", "mrpc", 256), ("text", "subwords", 512)):
        longer = {"task.max_length": length}  # twice that of quick
        check(task, f"quick,{preset},seq1024", longer, base=f"quick,{preset}")


@pytest.mark.parametrize("preset", ["subwords", "quick,subwords"])
def test_fine_tuning_on_labelled_texts_is_that_on_imdb(preset):
    """So that two settings carry a run of the corpus over: its folder, its tokens."""
    text = flat("text", preset)
    labelled_texts = flat("labelled_texts", preset)
    every_100_steps = train(eval_every=100, checkpoint_every=100)
    for key in text.keys() - every_100_steps - {"task.name"}:
        assert labelled_texts[key] == text[key], key
    for key, steps in every_100_steps.items():
        assert labelled_texts[key] == steps


def test_pathx_is_pathfinder_at_a_sixteenth_of_the_batch():
    own = {"task.name": "pathx", "task.max_length": 16_384, "task.resolution": 128}
    own |= optimizer(warmup_steps=312)
    own |= train(batch_size=16, num_steps=62_400, eval_every=3_120)
    own["train.checkpoint_every"] = 3_120
    pathfinder, pathx = flat("pathfinder", ""), flat("pathx", "")
    assert pathfinder | own == pathx
    gpu = model(dtype="bfloat16", remat="block") | train(batch_size=32)
    check("pathx", "gpu", gpu)


# Nobody has published these: the numbers of README.md and of results/ are theirs.
QUICK = {
    "listops": {
        **{"task.max_length": 48, "task.min_tokens": 24, "task.max_tokens": 48},
        **{"task.max_depth": 3, "task.max_args": 6},
        **attention(num_landmarks=6),
        **optimizer(learning_rate=1e-3, warmup_steps=300),
        **train(num_steps=12_000, eval_every=1_000, checkpoint_every=1_000),
    },
    "text": {
        "task.max_length": 512,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    "retrieval": {
        "task.max_length": 256,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    "image": {
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(batch_size=32, num_steps=1_000, eval_every=500, checkpoint_every=500),
    },
    "pathfinder": {
        **{"task.difficulty": "easy", "task.num_examples": 5_000},
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(batch_size=32, num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    "corpus": {
        **{"task.max_length": 64, "task.vocab_size": 8_192},
        **BERT_QUICK,
        **attention(num_landmarks=16),
        **optimizer(learning_rate=1e-3, warmup_steps=200),
        **train(batch_size=64, num_steps=2_000, eval_every=250, checkpoint_every=250),
    },
    "labelled_texts": {
        "task.max_length": 512,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
}
OTHERS = {  # the options of attentions with which short sequences are long
    "listops": {
        **{"linformer.projection_dim": 12, "longformer.window": 8},
        **{"bigbird.block_size": 4, "reformer.bucket_size": 8},
    },
    "text": {
        **{"linformer.projection_dim": 64, "longformer.window": 64},
        **{"bigbird.block_size": 32, "reformer.bucket_size": 64},
    },
    "retrieval": {
        **{"linformer.projection_dim": 32, "longformer.window": 32},
        **{"bigbird.block_size": 16, "reformer.bucket_size": 32},
    },
    "corpus": {
        **{"linformer.projection_dim": 16, "longformer.window": 16},
        **{"bigbird.block_size": 8, "reformer.bucket_size": 16},
    },
    "glue": {
        **{"linformer.projection_dim": 64, "longformer.window": 32},
        **{"bigbird.block_size": 16, "reformer.bucket_size": 64},
    },
}


@pytest.mark.parametrize("task", QUICK)
def test_quick_is_what_the_results_were_trained_with(task):
    check(task, "quick", QUICK[task])


@pytest.mark.parametrize("task", OTHERS)
def test_quick_makes_short_sequences_long_for_every_attention(task):
    for path, value in OTHERS[task].items():
        name, _, option = path.partition(".")
        assert flat(task, f"{name},quick")[f"attention.{option}"] == value


def test_quick_pretraining_goes_on_at_twice_the_length():
    longer = {"task.max_length": 128, **optimizer(learning_rate=1e-4, warmup_steps=0)}
    longer |= train(batch_size=32, num_steps=1_000)
    check("corpus", "quick,seq1024", longer, base="quick")


def named(*names):
    return tuple({"attention.name": name} for name in names)


def nystrom(key, *values):
    return tuple({"attention.name": "nystrom", f"attention.{key}": x} for x in values)


def test_table_3_has_the_papers_attentions_and_tasks():
    attentions = named("nystrom", "softmax", "linformer", "performer", "reformer")
    assert PLANS["table3"] == {"tasks": LRA, "seeds": 3, "variants": attentions}
    assert {*PLANS["table2"]["tasks"]} == {
        *("glue", "glue:mrpc", "glue:qnli", "glue:qqp", "glue:mnli"),
        "text:subwords",
    }
    landmarks = PLANS["landmarks"]
    assert landmarks["variants"] == (
        *nystrom("num_landmarks", 64),
        *named("softmax"),
        *nystrom("num_landmarks", 16, 256, 32, 128),
    )
    ablations = {
        *map(str, nystrom("conv_kernel_size", 35, 0)),
        *map(str, nystrom("landmarks", "random", "kmeans")),
        *map(str, nystrom("pinv", "identity", "exact")),
    }
    assert ablations <= {*map(str, PLANS["ablations"]["variants"])}

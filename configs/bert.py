"""The paper's encoder of text, BERT's, in three sizes: the group `model`."""

BERT = {
    "norm": "post",
    "gelu": "tanh",
    "embedding_norm": True,
    "num_token_types": 2,
    "pooling": "bert_pooler",  # of a classifier: [CLS], Linear, tanh
}
BASE = {"num_layers": 12, "num_heads": 12, "model_dim": 768, "mlp_dim": 3072, **BERT}
# The paper's small one has four layers; its width is not stated.
SMALL = {"num_layers": 4, "num_heads": 8, "model_dim": 512, "mlp_dim": 2048, **BERT}
QUICK = {"num_layers": 4, "num_heads": 2, "model_dim": 128, "mlp_dim": 512, **BERT}
CONVOLUTION = {"conv_kernel_size": 33}

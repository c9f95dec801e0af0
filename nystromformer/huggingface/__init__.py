"""Published weights of BERT, RoBERTa and Nyströmformer, with any attention.

A folder as transformers writes it becomes a model with these weights. By default it
computes what PyTorch computes; with `num_landmarks`, or a different `attention`, the
same weights run in O(L · M). BERT's and RoBERTa's have no convolution of V: one that is
asked for starts with a new kernel, to be trained.

Nyströmformer's published configs set num_landmarks = segment_means_seq_len, for which
transformers computes exact attention: softmax and the convolution of V. Differences are
on purpose: with `num_landmarks` Z₀ is scaled by the norms of each matrix
(`nystromformer.nystrom`); padding changes nothing, where theirs lets the values of
padded tokens into the convolution; and positions count from the first column, where
RoBERTa's count from the first token, so that its padding must come last.
"""

try:
    from nystromformer.huggingface.load import load_pretrained as load_pretrained
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "nystromformer.huggingface needs `pip install '.[hf]'` in the folder of "
        f"nystromformer-jax: {error}"
    ) from error

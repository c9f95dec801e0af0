"""The paper in float64 numpy, token by token: what the code is compared with.

One head of one sequence; `valid` is the list of positions that count.
"""

import math

import numpy as np

Array = np.ndarray


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(query: Array, key: Array, value: Array, valid: list[int]) -> Array:
    """Eq. (1): softmax(Q Kᵀ / √H) V over the valid keys."""
    rows = []
    for q in query:
        scores = np.array([q @ key[s] for s in valid]) / np.sqrt(query.shape[-1])
        weights = softmax(scores)
        rows.append(sum(w * value[s] for w, s in zip(weights, valid, strict=True)))
    return np.array(rows)


def segments(valid: list[int], num_landmarks: int) -> list[list[int]]:
    """The valid tokens in order, dealt into contiguous groups of nearly equal size."""
    groups = min(num_landmarks, len(valid))
    members = [[] for _ in range(groups)]
    for rank, token in enumerate(valid):
        members[rank * groups // len(valid)].append(token)
    return members


def segment_means(x: Array, valid: list[int], num_landmarks: int) -> Array:
    """Section "Nyström method": landmarks as means of segments."""
    return np.array([x[group].mean(0) for group in segments(valid, num_landmarks)])


def initial_scale(a: Array) -> float:
    """‖A‖₁ ‖A‖∞ of eq. (14)."""
    return np.abs(a).sum(0).max() * np.abs(a).sum(1).max()


def pinv(a: Array, num_iters: int, scale: float | None = None) -> Array:
    """Eq. (14), from Z₀ = Aᵀ / scale."""
    eye = np.eye(len(a))
    z = a.T / (initial_scale(a) if scale is None else scale)
    for _ in range(num_iters):
        z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
    return z


def kernels(
    query: Array,
    key: Array,
    counted_queries: list[int],
    valid: list[int],
    counted_keys: list[int],
    num_landmarks: int,
) -> tuple[Array, Array, Array]:
    """F̃ [T, M], A [M, M], B̃ [M, n valid], the three softmax matrices of eq. (13)."""
    q = segment_means(query, counted_queries, num_landmarks)
    k = segment_means(key, counted_keys, num_landmarks)
    return kernels_of(q, k, query, key[valid])


def kernels_of(
    q: Array, k: Array, query: Array, key: Array
) -> tuple[Array, Array, Array]:
    """The same for given landmarks of the queries and of the keys."""
    scale = 1 / np.sqrt(query.shape[-1])
    f, a = softmax(query @ k.T * scale), softmax(q @ k.T * scale)
    return f, a, softmax(q @ key.T * scale)


def nystrom(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    num_landmarks: int,
    num_iters: int = 6,
    pinv_scale: float | None = None,
) -> Array:
    """Eq. (13) over valid tokens; softmax attention where landmarks are all tokens."""
    valid = [s for s in range(len(key)) if mask[s]]
    queries = valid if len(query) == len(key) else list(range(len(query)))
    if num_landmarks >= min(len(query), len(valid)):
        return attention(query, key, value, valid)
    f, a, b = kernels(query, key, queries, valid, valid, num_landmarks)
    return f @ (pinv(a, num_iters, pinv_scale) @ (b @ value[valid]))


def standard_nystrom(
    query: Array,
    key: Array,
    valid: list[int],
    tokens: list[int],
    num_iters: int | None = None,
) -> Array:
    """Eqs. (4) to (6): rows and columns of S of these tokens, over the valid ones.

    The inverse is the exact one, or eq. (14)'s.
    """
    s = softmax(query[valid] @ key[valid].T / np.sqrt(query.shape[-1]))
    places = [valid.index(token) for token in tokens]
    sample = s[np.ix_(places, places)]
    inverse = np.linalg.pinv(sample) if num_iters is None else pinv(sample, num_iters)
    return s[:, places] @ inverse @ s[places]


def published(
    query: Array, key: Array, value: Array, mask: Array, num_landmarks: int
) -> Array:
    """Eq. (13) as the published code treats padding, M dividing L.

    Padding is zeroed and counts in the segment means; landmarks of nothing but padding
    take part in both landmark softmaxes; only the keys of B̃ are masked.
    """
    valid = [s for s in range(len(key)) if mask[s]]
    everyone = list(range(len(key)))
    query, key = query * mask[:, None], key * mask[:, None]
    f, a, b = kernels(query, key, everyone, valid, everyone, num_landmarks)
    return f @ (pinv(a, 6) @ (b @ value[valid]))


def convolution(value: Array, kernel: Array, mask: Array) -> Array:
    """The skip of V: a centred kernel over the tokens, zeros beyond and at padding."""
    out = np.zeros_like(value)
    for t in range(len(value)):
        for k, weight in enumerate(kernel):
            s = t + k - len(kernel) // 2
            if 0 <= s < len(value) and mask[s]:
                out[t] += weight * value[s]
    return out


def lloyd(x: Array, means: Array, num_steps: int) -> Array:
    """The textbook's k-means, a token and a cluster at a time."""
    for _ in range(num_steps):
        nearest = [np.argmin([((row - c) ** 2).sum() for c in means]) for row in x]
        clusters = [x[np.equal(nearest, m)] for m in range(len(means))]
        pairs = zip(clusters, means, strict=True)
        means = np.array([c.mean(0) if len(c) else old for c, old in pairs])
    return means


def gelu(x: Array, kind: str) -> Array:
    """The GELU by "erf", x Φ(x), or its approximation by "tanh"."""
    if kind == "erf":
        return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2
    return x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2

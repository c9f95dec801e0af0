"""The paper in float64 numpy, token by token: what the code is compared with.

One head of one sequence; `valid` is the list of positions that count.
"""

import math

import numpy as np

Array = np.ndarray


def softmax(scores: Array) -> Array:
    """Softmax over the last axis."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(query: Array, key: Array, value: Array, valid: list[int]) -> Array:
    """Eq. (1): softmax(Q Kᵀ / √H) V over the valid keys."""
    scale = 1 / np.sqrt(query.shape[-1])
    out = np.zeros((len(query), value.shape[-1]))
    for t, q in enumerate(query):
        scores = key[valid] @ q * scale
        out[t] = softmax(scores) @ value[valid]
    return out


def segments(valid: list[int], num_landmarks: int) -> list[list[int]]:
    """The valid tokens in order, dealt into contiguous groups of nearly equal size."""
    num_groups = min(num_landmarks, len(valid))
    groups = [[] for _ in range(num_groups)]
    for rank, token in enumerate(valid):
        groups[rank * num_groups // len(valid)].append(token)
    return groups


def segment_means(x: Array, valid: list[int], num_landmarks: int) -> Array:
    """Section "Nyström method": landmarks as means of segments."""
    means = [x[group].mean(0) for group in segments(valid, num_landmarks)]
    return np.array(means)


def initial_scale(a: Array) -> float:
    """‖A‖₁ ‖A‖∞ of eq. (14)."""
    norm_1 = np.abs(a).sum(0).max()
    norm_inf = np.abs(a).sum(1).max()
    return norm_1 * norm_inf


def pinv(a: Array, num_iters: int, scale: float | None = None) -> Array:
    """Eq. (14), from Z₀ = Aᵀ / scale."""
    if scale is None:
        scale = initial_scale(a)
    eye = np.eye(len(a))
    z = a.T / scale
    for _ in range(num_iters):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
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
    query_landmarks = segment_means(query, counted_queries, num_landmarks)
    key_landmarks = segment_means(key, counted_keys, num_landmarks)
    return kernels_of(query_landmarks, key_landmarks, query, key[valid])


def kernels_of(
    query_landmarks: Array, key_landmarks: Array, query: Array, key: Array
) -> tuple[Array, Array, Array]:
    """The same for given landmarks of the queries and of the keys."""
    scale = 1 / np.sqrt(query.shape[-1])
    f = softmax(query @ key_landmarks.T * scale)
    a = softmax(query_landmarks @ key_landmarks.T * scale)
    b = softmax(query_landmarks @ key.T * scale)
    return f, a, b


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
    if num_landmarks >= min(len(query), len(valid)):
        return attention(query, key, value, valid)
    valid_queries = valid
    if len(query) != len(key):
        valid_queries = list(range(len(query)))
    f, a, b = kernels(
        query,
        key,
        counted_queries=valid_queries,
        valid=valid,
        counted_keys=valid,
        num_landmarks=num_landmarks,
    )
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
    scores = query[valid] @ key[valid].T / np.sqrt(query.shape[-1])
    s = softmax(scores)
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
    f, a, b = kernels(
        query * mask[:, None],
        key * mask[:, None],
        counted_queries=everyone,
        valid=valid,
        counted_keys=everyone,
        num_landmarks=num_landmarks,
    )
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
        nearest = []
        for token in x:
            squared_distances = [((token - mean) ** 2).sum() for mean in means]
            nearest.append(np.argmin(squared_distances))

        means = means.copy()
        for m in range(len(means)):
            cluster = x[np.equal(nearest, m)]
            # A cluster without tokens keeps its mean.
            if len(cluster) > 0:
                means[m] = cluster.mean(0)
    return means


def gelu(x: Array, kind: str) -> Array:
    """The GELU x Φ(x), with Φ by "erf" or approximated by "tanh"."""
    if kind == "erf":
        probability = (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2
    else:
        argument = (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)
        probability = (1 + np.tanh(argument)) / 2
    return x * probability

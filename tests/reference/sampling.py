"""Every sampler on one row, in plain Python floats and loops: a literal transcription of its definition."""

import math

REMOVED = -math.inf


def alive(l):
    return [i for i, x in enumerate(l) if x > REMOVED]


def softmax(l):
    top = max(l)
    e = [math.exp(x - top) if x > REMOVED else 0.0 for x in l]
    z = math.fsum(e)
    return [x / z for x in e]


def entropy(p):
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def ranking(l):
    return sorted(alive(l), key=lambda i: (-l[i], i))


def keep(l, kept):
    kept = set(kept)
    return [x if i in kept else REMOVED for i, x in enumerate(l)]


def prefix(order, weight, need, at_least):
    kept, total = [], 0.0
    for i in order:
        if total >= need and len(kept) >= at_least:
            break
        kept.append(i)
        total += weight[i]
    return kept or order[:1]


def threshold(l, test, min_keep):
    best = max(l)
    return keep(l, [i for i in alive(l) if test(i) or l[i] == best] + ranking(l)[:min_keep])


def top_k(l, k, min_keep=1):
    return l if k == 0 else keep(l, ranking(l)[: max(k, min_keep)])


def top_p(l, p, min_keep=1):
    return l if p == 1 else keep(l, prefix(ranking(l), softmax(l), p, min_keep))


def typical(l, p, min_keep=1):
    if p == 1:
        return l
    q = softmax(l)
    H = entropy(q)
    dev = {i: abs(-math.log(q[i]) - H) if q[i] > 0 else math.inf for i in alive(l)}
    return keep(l, prefix(sorted(alive(l), key=lambda i: (dev[i], i)), q, p, min_keep))


def min_p(l, p, min_keep=1):
    return l if p == 0 else threshold(l, lambda i: l[i] - max(l) >= math.log(p), min_keep)


def top_a(l, a, min_keep=1):
    q = softmax(l)
    return l if a == 0 else threshold(l, lambda i: q[i] >= a * max(q) ** 2, min_keep)


def epsilon_cutoff(l, epsilon, min_keep=1):
    q = softmax(l)
    return l if epsilon == 0 else threshold(l, lambda i: q[i] >= epsilon, min_keep)


def eta_cutoff(l, epsilon, min_keep=1):
    q = softmax(l)
    eta = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy(q)))
    return l if epsilon == 0 else threshold(l, lambda i: q[i] >= eta, min_keep)


def top_n_sigma(l, n, min_keep=1):
    values = [l[i] for i in alive(l)]
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))
    return l if n == 0 else threshold(l, lambda i: l[i] >= max(l) - n * sigma, min_keep)


def tail_free(l, z, min_keep=1):
    order = ranking(l)
    if z == 1 or len(order) <= 2 or l[order[0]] == l[order[-1]]:
        return l
    q = softmax(l)
    q = [q[i] for i in order]
    c = [abs(q[j] - 2 * q[j + 1] + q[j + 2]) for j in range(len(q) - 2)]
    total = math.fsum(c)
    if total == 0:
        return l
    fractions = [math.fsum(c[: j + 1]) / total for j in range(len(c))]
    return keep(l, order[: max(min_keep, 1 + sum(f <= z for f in fractions))])


def xtc(l, threshold, probability, protected=(), min_keep=1, *, u):
    if probability == 0 or threshold > 0.5 or u >= probability:
        return l
    q = softmax(l)
    choices = [i for i in ranking(l) if q[i] >= threshold]
    removed = set(choices[:-1])
    if len(choices) < 2 or removed & set(protected) or len(alive(l)) - len(removed) < min_keep:
        return l
    return [REMOVED if i in removed else x for i, x in enumerate(l)]


def mirostat_v2(l, tau, eta=0.1, *, mu):
    q = softmax(l)
    order = ranking(l)
    return keep(l, [i for i in order if q[i] > 0 and -math.log2(q[i]) <= mu] or order[:1])


def mirostat_v1(l, tau, eta=0.1, m=100, *, mu):
    order, V = ranking(l), len(l)
    n = len(order)
    if n == 1:
        return l
    fitted = range(min(m - 1, n - 1))
    t = [math.log((i + 2) / (i + 1)) for i in fitted]
    b = [l[order[i]] - l[order[i + 1]] for i in fitted]
    s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
    e = s - 1
    if s < 1e-3:
        ln_k = mu * math.log(2)
    else:
        factor = 1 / math.log(V) if abs(e) < 1e-9 else e / (1 - V ** (-e))
        ln_k = (math.log(factor) + mu * math.log(2)) / s
    k = math.floor(math.exp(min(ln_k, 40)))
    return keep(l, order[: max(1, min(k, n))])


def temperature(l, temperature):
    if temperature == 1:
        return l
    if temperature < 1e-5:
        return keep(l, ranking(l)[:1])
    return [x / temperature for x in l]


def dynamic_temperature(l, low, high, exponent=1.0):
    n = len(alive(l))
    if n == 1 or low == high == 1:
        return l
    r = min(1.0, max(0.0, entropy(softmax(l)) / math.log(n)))
    T = low + (high - low) * r**exponent
    return keep(l, ranking(l)[:1]) if T < 1e-5 else [x / T for x in l]


def quadratic(l, factor, curve=1.0):
    M = max(l)
    f, c = factor, curve
    smooth = lambda d: M - f * (3 - c) / 2 * d * d + f * (c - 1) / 2 * d**3  # noqa: E731
    return l if f == 0 else [smooth(x - M) if x > REMOVED else x for x in l]


def scoped(history, n_prompt, window, scope, V):
    h = history[n_prompt:] if scope == "generated" else history
    h = h[-window:] if window else h
    return [t for t in h if 0 <= t < V]


def repetition_penalty(l, penalty, window=0, scope="all", *, history, n_prompt=0):
    h = set(scoped(history, n_prompt, window, scope, len(l)))
    return [(x * penalty if x < 0 else x / penalty) if i in h else x for i, x in enumerate(l)]


def frequency_penalty(l, penalty, window=0, scope="generated", *, history, n_prompt=0):
    h = scoped(history, n_prompt, window, scope, len(l))
    return [x - penalty * h.count(i) if i in h else x for i, x in enumerate(l)]


def presence_penalty(l, penalty, window=0, scope="generated", *, history, n_prompt=0):
    h = set(scoped(history, n_prompt, window, scope, len(l)))
    return [x - penalty if i in h else x for i, x in enumerate(l)]


def dry(l, multiplier, base=1.75, allowed_length=2, window=0, breakers=(), *, history, n_prompt=0):
    h = history[-window:] if window else history
    N = len(h)
    suffix_length = 0  # of the longest suffix without a breaker
    while suffix_length < N and h[N - 1 - suffix_length] not in breakers:
        suffix_length += 1
    longest = {}
    for j in range(N - 1):
        if h[j + 1] in breakers:
            continue
        m = 0
        while m < min(suffix_length, j + 1) and h[j - m] == h[N - 1 - m]:
            m += 1
        if m:
            longest[h[j + 1]] = max(longest.get(h[j + 1], 0), m)
    result = list(l)
    for t, m in longest.items():
        if 0 <= t < len(l) and m >= allowed_length and multiplier:
            result[t] -= multiplier * math.exp(min((m - allowed_length) * math.log(base), 60))
    return result


def never_empty(l, result):
    return result if alive(result) else keep(l, ranking(l)[:1])


def logit_bias(l, bias):
    return never_empty(l, [x + dict(bias).get(i, 0.0) for i, x in enumerate(l)])


def no_repeat_ngram(l, n, *, history, n_prompt=0):
    h = history
    if n == 0 or len(h) < n:
        return l
    tail = h[len(h) - n + 1 :]
    banned = {h[i + n - 1] for i in range(len(h) - n + 1) if h[i : i + n - 1] == tail}
    return never_empty(l, [REMOVED if i in banned else x for i, x in enumerate(l)])


def min_new_tokens(l, min_new, eos_ids, *, history, n_prompt=0):
    if len(history) - n_prompt >= min_new:
        return l
    return never_empty(l, [REMOVED if i in eos_ids else x for i, x in enumerate(l)])


NEEDS_HISTORY = {
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry",
    "no_repeat_ngram",
    "min_new_tokens",
}
SAMPLERS = {
    f.__name__: f
    for f in (
        top_k, top_p, typical, min_p, top_a, epsilon_cutoff, eta_cutoff, top_n_sigma, tail_free, xtc, mirostat_v1,
        mirostat_v2, temperature, dynamic_temperature, quadratic, repetition_penalty, frequency_penalty,
        presence_penalty, dry, logit_bias, no_repeat_ngram, min_new_tokens,
    )
}  # fmt: skip


def apply(stages, l, *, history=(), n_prompt=0, u=0.0, mu=None):
    """A pipeline on one row."""
    for stage in stages:
        parameters = dict(stage)
        name = parameters.pop("stage")
        if name in NEEDS_HISTORY:
            parameters |= {"history": list(history), "n_prompt": n_prompt}
        elif name == "xtc":
            parameters["u"] = u
        elif name.startswith("mirostat"):
            parameters["mu"] = 2 * parameters["tau"] if mu is None else mu
        l = SAMPLERS[name](list(l), **parameters)
    return l

"""Beam and contrastive search by their definitions: one row, no cache, the whole text for every token."""

import math

import torch


def log_softmax(l):
    top = max(l)
    z = top + math.log(math.fsum(math.exp(x - top) for x in l))
    return [x - z for x in l]


def beam(logits_after, *, B, L, eos=(), alpha=1.0, norm="power", early=False, n_best=1, adjust=None):
    """The best hypotheses as (tokens, score, log_prob, ended), from a function `logits_after(tokens)` and perhaps
    constraints `adjust(log_p, tokens)`; all of them lists."""

    def length_norm(n):
        return n**alpha if norm == "power" else ((5 + n) / 6) ** alpha

    active, finished = [(0.0, [])], []
    for step in range(1, L + 1):
        candidates = []
        for b, (s, tokens) in enumerate(active):
            lp = log_softmax(logits_after(tokens))
            lp = adjust(lp, tokens) if adjust else lp
            candidates += [(s + x, b, v) for v, x in enumerate(lp) if x > -math.inf]
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        survivors = []
        for r, (value, b, v) in enumerate(candidates[: max(2, 1 + len(eos)) * B]):
            tokens = [*active[b][1], v]
            if v in eos or step == L:
                if r < B:
                    finished.append((tokens, value / length_norm(step), value, v in eos))
            elif len(survivors) < B:
                survivors.append((value, tokens))
        finished = sorted(finished, key=lambda h: -h[1])[:B]
        active = survivors
        if not active:
            break
        if len(finished) == B:
            if early is True or B == 1:
                break
            n = L if early == "never" and alpha > 0 else step
            if active[0][0] / length_norm(n) <= finished[-1][1]:
                break
    return finished[:n_best]


def contrastive(model, prompt, *, k, alpha, L, eos=()):
    """The tokens that contrastive search appends to the prompt."""
    tokens = list(prompt)
    for _ in range(L):
        hidden = model.hidden_states(torch.tensor([tokens]))[0].double()
        l = model(torch.tensor([tokens]))[0, -1].double()
        p = l.softmax(-1)
        best = sorted(range(len(l)), key=lambda i: (-l[i].item(), i))[:k]
        scores = []
        for v in best:
            h = model.hidden_states(torch.tensor([[*tokens, v]]))[0, -1].double()
            cosine = torch.nn.functional.cosine_similarity(h[None], hidden, dim=-1)
            scores.append(((1 - alpha) * p[v] - alpha * cosine.max()).item())
        tokens.append(best[scores.index(max(scores))])
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]

"""Beam and contrastive search as they are defined, for one row, by running the whole text anew for every token."""

import math

import torch


def log_softmax(l):
    top = max(l)
    z = top + math.log(math.fsum(math.exp(x - top) for x in l))
    return [x - z for x in l]


def beam(logits_after, *, B, L, eos=(), alpha=1.0, norm="power", early=False, n_best=1, adjust=None):
    """`logits_after(tokens)` → list; `adjust(log_p, tokens)`: constraints. → (tokens, score, log_prob, ended)."""

    def scale(n):
        return n**alpha if norm == "power" else ((5 + n) / 6) ** alpha

    live, done = [(0.0, [])], []
    for step in range(1, L + 1):
        candidates = []
        for b, (s, tokens) in enumerate(live):
            lp = log_softmax(logits_after(tokens))
            lp = adjust(lp, tokens) if adjust else lp
            candidates += [(s + x, b, v) for v, x in enumerate(lp) if x > -math.inf]
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        following = []
        for r, (value, b, v) in enumerate(candidates[: max(2, 1 + len(eos)) * B]):
            tokens = [*live[b][1], v]
            if v in eos or step == L:
                if r < B:
                    done.append((tokens, value / scale(step), value, v in eos))
            elif len(following) < B:
                following.append((value, tokens))
        done = sorted(done, key=lambda d: -d[1])[:B]
        live = following
        if not live:
            break
        if len(done) == B:
            if early is True or B == 1:
                break
            n = L if early == "never" and alpha > 0 else step
            if live[0][0] / scale(n) <= done[-1][1]:
                break
    return done[:n_best]


def contrastive(model, prompt, *, k, alpha, L, eos=()):
    tokens = list(prompt)
    for _ in range(L):
        hidden = model.hidden(torch.tensor([tokens]))[0].double()
        l = model(torch.tensor([tokens]))[0, -1].double()
        p = l.softmax(-1)
        best = sorted(range(len(l)), key=lambda i: (-l[i].item(), i))[:k]
        scores = []
        for v in best:
            h = model.hidden(torch.tensor([[*tokens, v]]))[0, -1].double()
            cosine = torch.nn.functional.cosine_similarity(h[None], hidden, dim=-1)
            scores.append(((1 - alpha) * p[v] - alpha * cosine.max()).item())
        tokens.append(best[scores.index(max(scores))])
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]

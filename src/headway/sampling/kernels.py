"""GPU kernels in Triton, imported where they are used: there is no Triton on a machine without a GPU.

`prefix` is what top-k, top-p and typical do to a long row, without sorting it and without writing probabilities down:
the tokens are ranked by a key, each has a weight, and the shortest prefix whose weights reach a sum stays.

    by           key               weight    p = softmax(x), H its entropy
    "count"      x                 1
    "mass"       x                 p
    "typical"    −|ln p + H|       p

`block_max` is the first look of `ranking.ranked`, at memory speed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NEAR = 8192  # logits around the end of the prefix that are copied together
BLOCK, WARPS = 2048, 4  # the fastest of ten settings on an H200


@triton.jit
def _rising(x):
    """Integers in the order of the floats; + 0.0: there is a −0, and it equals 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _float(i):
    """The float of such an integer."""
    i = i.to(tl.int32)
    return tl.where(i < 0, i ^ 0x7FFFFFFF, i).to(tl.float32, bitcast=True)


@triton.jit
def _key(x, log_sum, entropy, BY: tl.constexpr):
    key = x
    if BY == "typical":
        key = -tl.abs((x - log_sum) + entropy)
    return key


@triton.jit
def _weight(x, log_sum, BY: tl.constexpr):
    weight = tl.exp(x - log_sum)
    if BY == "count":
        weight = tl.where(x > -float("inf"), 1.0, 0.0)
    return weight


@triton.jit
def _sums(row, N, BLOCK: tl.constexpr):
    """The largest logit, ln Σ eˣ and the entropy, from one reading: every lane keeps Σ eˣ⁻ᵐ and Σ (x − m) eˣ⁻ᵐ for its
    own largest m, and rescales them when m rises."""
    columns = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], -3.0e38, tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    t = tl.zeros([BLOCK], tl.float32)
    for at in range(0, N, BLOCK):
        x = tl.load(row + at + columns, mask=at + columns < N, other=-float("inf"))
        higher = tl.maximum(m, x)
        scale = tl.exp(m - higher)
        e = tl.exp(x - higher)
        t = scale * (t + tl.where(s > 0, s * (m - higher), 0.0)) + tl.where(e > 0, (x - higher) * e, 0.0)
        s = scale * s + e
        m = higher
    top = tl.max(m)
    scale = tl.exp(m - top)
    total = tl.sum(s * scale)
    mean = tl.sum(scale * (t + tl.where(s > 0, s * (m - top), 0.0))) / total
    return top, top + tl.log(total), tl.log(total) - mean


@triton.jit
def _above(row, n, log_sum, entropy, a, b, c, BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr):
    """Σ weight of the keys at or above each of three levels; with COUNTS how many there are."""
    columns = tl.arange(0, BLOCK)
    mass_a = tl.zeros([BLOCK], tl.float32)
    mass_b = tl.zeros([BLOCK], tl.float32)
    mass_c = tl.zeros([BLOCK], tl.float32)
    n_a = tl.zeros([BLOCK], tl.float32)
    n_b = tl.zeros([BLOCK], tl.float32)
    n_c = tl.zeros([BLOCK], tl.float32)
    for at in range(0, n, BLOCK):
        x = tl.load(row + at + columns, mask=at + columns < n, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        w = _weight(x, log_sum, BY)
        mass_a += tl.where(k >= a, w, 0.0)
        mass_b += tl.where(k >= b, w, 0.0)
        mass_c += tl.where(k >= c, w, 0.0)
        if COUNTS:
            is_there = x > -float("inf")
            n_a += tl.where((k >= a) & is_there, 1.0, 0.0)
            n_b += tl.where((k >= b) & is_there, 1.0, 0.0)
            n_c += tl.where((k >= c) & is_there, 1.0, 0.0)
    return tl.sum(mass_a), tl.sum(mass_b), tl.sum(mass_c), tl.sum(n_a), tl.sum(n_b), tl.sum(n_c)


@triton.jit
def _look(
    row, n, log_sum, entropy, a, b, c, low, high, more_mass, more_count, wanted, least,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """The prefix ends at a key in low … high (as integers): what is known after looking at three rising levels."""
    mass_a, mass_b, mass_c, n_a, n_b, n_c = _above(row, n, log_sum, entropy, a, b, c, BLOCK, BY, COUNTS)
    is_a = more_mass + mass_a >= wanted
    is_b = more_mass + mass_b >= wanted
    is_c = more_mass + mass_c >= wanted
    if COUNTS:
        is_a = is_a & (more_count + n_a >= least)
        is_b = is_b & (more_count + n_b >= least)
        is_c = is_c & (more_count + n_c >= least)
    ia = _rising(a)
    ib = _rising(b)
    ic = _rising(c)
    reached = tl.where(is_c, ic, tl.where(is_b, ib, tl.where(is_a, ia, low)))
    missed = tl.where(is_a, tl.where(is_b, tl.where(is_c, high + 1, ic), ib), ia)
    low = tl.maximum(low, reached)
    return low, tl.maximum(tl.minimum(high, missed - 1), low)


@triton.jit
def _search(
    row, n, log_sum, entropy, low, high, more_mass, more_count, wanted, least,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """The highest key in low … high at which the prefix reaches what is wanted; low itself where none does."""
    while low < high:
        step = (high - low + 3) // 4
        a = _float(low + step)
        b = _float(tl.minimum(low + 2 * step, high))
        c = _float(tl.minimum(low + 3 * step, high))
        low, high = _look(
            row, n, log_sum, entropy, a, b, c, low, high, more_mass, more_count, wanted, least, BLOCK, BY, COUNTS
        )
    return low


@triton.jit
def _prefix(
    rows, need, at_least, kept, near_rows, N, need_stride, least_stride, n_most,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """One program per row. The prefix ends at the highest key t with Σ weight[key ≥ t] ≥ need. A few readings of the
    row say where t lies to a fraction of a nat, the logits around there are copied together, and the search ends among
    them. A last reading writes the prefix, keys that equal t in their order."""
    at_row = tl.program_id(0).to(tl.int64)
    row = rows + at_row * N
    kept += at_row * N
    near_row = near_rows + at_row * n_most
    wanted = tl.load(need + at_row * need_stride).to(tl.float32)
    least = tl.load(at_least + at_row * least_stride).to(tl.float32)
    columns = tl.arange(0, BLOCK)

    top, log_sum, entropy = _sums(row, N, BLOCK)
    if BY == "typical":
        top = tl.full([], 0.0, tl.float32)  # the best key
    low = tl.full([], -2139095041, tl.int64)  # −inf: everything reaches that
    high = _rising(top)
    # By values first, whose differences mean something: most prefixes end within a few nats of the best key.
    low, high = _look(
        row, N, log_sum, entropy, top - 16, top - 4, top - 1, low, high, 0.0, 0.0, wanted, least, BLOCK, BY, COUNTS
    )
    for _ in range(2):
        floor = _float(low)
        step = (_float(high) - floor) / 4
        if (step > 0) & (step < 1e30):  # not where low is below all keys
            low, high = _look(
                row, N, log_sum, entropy, floor + step, floor + 2 * step, floor + 3 * step,
                low, high, 0.0, 0.0, wanted, least, BLOCK, BY, COUNTS,
            )  # fmt: skip

    n_near = tl.full([], 0, tl.int32)
    mass_above = tl.zeros([BLOCK], tl.float32)
    count_above = tl.zeros([BLOCK], tl.float32)
    floor = _float(low)
    ceiling = _float(high)
    for at in range(0, N, BLOCK):
        x = tl.load(row + at + columns, mask=at + columns < N, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        near = (k >= floor) & (k <= ceiling) & (k > -float("inf"))
        mass_above += tl.where(k > ceiling, _weight(x, log_sum, BY), 0.0)
        count_above += tl.where(k > ceiling, 1.0, 0.0)
        some = tl.sum(near.to(tl.int32))
        if some > 0:
            place = n_near + tl.cumsum(near.to(tl.int32), 0) - 1
            tl.store(near_row + place, x, mask=near & (place < n_most))
            n_near += some
    mass = tl.sum(mass_above)
    count = tl.sum(count_above)
    tl.debug_barrier()  # what one thread stored, others load
    if n_near <= n_most:
        low = _search(
            near_row, n_near, log_sum, entropy, low, high, mass, count, wanted, least, BLOCK, BY, COUNTS
        )  # fmt: skip
        t = _float(low)
        past = _float(low + 1)
        m, _b, _c, n, _d, _e = _above(near_row, n_near, log_sum, entropy, past, past, past, BLOCK, BY, True)
        mass += m
        count += n
    else:  # as many keys are equal, or nearly so
        low = _search(row, N, log_sum, entropy, low, high, 0.0, 0.0, wanted, least, BLOCK, BY, COUNTS)
        t = _float(low)
        past = _float(low + 1)
        mass, _b, _c, count, _d, _e = _above(row, N, log_sum, entropy, past, past, past, BLOCK, BY, True)

    for at in range(0, N, BLOCK):
        inside = at + columns < N
        x = tl.load(row + at + columns, mask=inside, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        chosen = (k > t) | (x != x)  # NaN stays, to be seen by whoever draws
        equal = (k == t) & inside
        if tl.sum(equal.to(tl.int32)) > 0:
            w = tl.where(equal, _weight(x, log_sum, BY), 0.0)
            ones = equal.to(tl.float32)
            before = mass + tl.cumsum(w, 0) - w
            rank = count + tl.cumsum(ones, 0) - ones
            chosen = chosen | (equal & ((before < wanted) | (rank < least)))
            mass += tl.sum(w)
            count += tl.sum(ones)
        tl.store(kept + at + columns, tl.where(chosen, x, -float("inf")), mask=inside)


def prefix(rows: Tensor, need: Tensor, at_least: Tensor | int, by: str) -> Tensor:
    """rows (B, N) float32, need (B or 1, 1) → (B, N): the prefix as it is, the rest −inf; of each row `at_least`."""
    B, N = rows.shape
    rows, kept = rows.contiguous(), torch.empty_like(rows, memory_format=torch.contiguous_format)
    counts = not isinstance(at_least, int) or at_least > 1
    least = torch.full((1, 1), at_least, device=rows.device) if isinstance(at_least, int) else at_least
    near = torch.empty(B, NEAR, dtype=torch.float32, device=rows.device)
    with torch.cuda.device(rows.device):
        _prefix[(B,)](
            rows, need, least, kept, near, N, int(need.shape[0] > 1), int(least.shape[0] > 1), NEAR,
            BLOCK=BLOCK, BY=by, COUNTS=counts, num_warps=WARPS,
        )  # fmt: skip
    return kept


@triton.jit
def _block_max(rows, best, N, n_blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """One program for some blocks of a row. As integers, so that a NaN is the largest and not passed over."""
    at_row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    columns = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = block < n_blocks
    x = tl.load(rows + at_row * N + columns, mask=inside[:, None], other=-float("inf"))
    tl.store(best + at_row * n_blocks + block, _float(tl.max(_rising(x), axis=1)), mask=inside)


def block_max(rows: Tensor, width: int) -> Tensor:
    """rows (B, N) float32 → (B, N // width): the best of each `width` columns, a power of two."""
    B, N = rows.shape
    rows, n_blocks = rows.contiguous(), N // width
    best = torch.empty(B, n_blocks, dtype=torch.float32, device=rows.device)
    blocks = max(1, BLOCK // width)
    with torch.cuda.device(rows.device):
        _block_max[(B, triton.cdiv(n_blocks, blocks))](rows, best, N, n_blocks, WIDTH=width, BLOCKS=blocks, num_warps=8)
    return best

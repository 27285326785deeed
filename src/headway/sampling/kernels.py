"""GPU kernels in Triton. Import this module only where it is used: PyTorch builds without CUDA have no Triton.

`prefix` computes top-k, top-p and typical on a long row without sorting it and without storing probabilities: tokens
are ranked by a key, each has a weight, and the shortest prefix whose weights reach a sum stays.

    by           key               weight    p = softmax(x), H its entropy
    "count"      x                 1
    "mass"       x                 p
    "typical"    −|ln p + H|       p

`block_max` is the first step of `ranking.ranked`, at memory bandwidth. `best_column` is `argmax` that detects NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CANDIDATES = 8192  # logits around the end of the prefix that are gathered into one buffer
BLOCK, WARPS = 2048, 4  # the fastest of ten settings on an H200
MAX_PARTS = 64  # programs per row that look for its best column


@triton.jit
def _sortable(x):
    """Integers in the order of the floats; + 0.0 turns −0 into 0, its equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _float(i):
    """The inverse of `_sortable`."""
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
def _statistics(row, N, BLOCK: tl.constexpr):
    """The largest logit, ln Σ eˣ and the entropy in one pass: every lane keeps Σ eˣ⁻ᵐ and Σ (x − m) eˣ⁻ᵐ for its
    running maximum m, and rescales them when m rises."""
    columns = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], -3.0e38, tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    t = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        x = tl.load(row + start + columns, mask=start + columns < N, other=-float("inf"))
        new_m = tl.maximum(m, x)
        scale = tl.exp(m - new_m)
        e = tl.exp(x - new_m)
        t = scale * (t + tl.where(s > 0, s * (m - new_m), 0.0)) + tl.where(e > 0, (x - new_m) * e, 0.0)
        s = scale * s + e
        m = new_m
    top = tl.max(m)
    scale = tl.exp(m - top)
    total = tl.sum(s * scale)
    mean = tl.sum(scale * (t + tl.where(s > 0, s * (m - top), 0.0))) / total
    return top, top + tl.log(total), tl.log(total) - mean


@triton.jit
def _mass_above(row, n, log_sum, entropy, a, b, c, BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr):
    """Σ weight of the keys at or above each of three levels; with COUNTS also their number."""
    columns = tl.arange(0, BLOCK)
    mass_a = tl.zeros([BLOCK], tl.float32)
    mass_b = tl.zeros([BLOCK], tl.float32)
    mass_c = tl.zeros([BLOCK], tl.float32)
    n_a = tl.zeros([BLOCK], tl.float32)
    n_b = tl.zeros([BLOCK], tl.float32)
    n_c = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(row + start + columns, mask=start + columns < n, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        w = _weight(x, log_sum, BY)
        mass_a += tl.where(k >= a, w, 0.0)
        mass_b += tl.where(k >= b, w, 0.0)
        mass_c += tl.where(k >= c, w, 0.0)
        if COUNTS:
            is_alive = x > -float("inf")
            n_a += tl.where((k >= a) & is_alive, 1.0, 0.0)
            n_b += tl.where((k >= b) & is_alive, 1.0, 0.0)
            n_c += tl.where((k >= c) & is_alive, 1.0, 0.0)
    return tl.sum(mass_a), tl.sum(mass_b), tl.sum(mass_c), tl.sum(n_a), tl.sum(n_b), tl.sum(n_c)


@triton.jit
def _narrow(
    row, n, log_sum, entropy, a, b, c, low, high, mass_offset, count_offset, need, at_least,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """Narrow the bracket low … high (sortable integers) of the key that ends the prefix, by three rising levels."""
    mass_a, mass_b, mass_c, n_a, n_b, n_c = _mass_above(row, n, log_sum, entropy, a, b, c, BLOCK, BY, COUNTS)
    is_a = mass_offset + mass_a >= need
    is_b = mass_offset + mass_b >= need
    is_c = mass_offset + mass_c >= need
    if COUNTS:
        is_a = is_a & (count_offset + n_a >= at_least)
        is_b = is_b & (count_offset + n_b >= at_least)
        is_c = is_c & (count_offset + n_c >= at_least)
    ia = _sortable(a)
    ib = _sortable(b)
    ic = _sortable(c)
    reached = tl.where(is_c, ic, tl.where(is_b, ib, tl.where(is_a, ia, low)))
    missed = tl.where(is_a, tl.where(is_b, tl.where(is_c, high + 1, ic), ib), ia)
    low = tl.maximum(low, reached)
    return low, tl.maximum(tl.minimum(high, missed - 1), low)


@triton.jit
def _search(
    row, n, log_sum, entropy, low, high, mass_offset, count_offset, need, at_least,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """The highest key in low … high at which the prefix is long enough; low if there is none."""
    while low < high:
        step = (high - low + 3) // 4
        a = _float(low + step)
        b = _float(tl.minimum(low + 2 * step, high))
        c = _float(tl.minimum(low + 3 * step, high))
        low, high = _narrow(
            row, n, log_sum, entropy, a, b, c, low, high, mass_offset, count_offset, need, at_least, BLOCK, BY, COUNTS
        )
    return low


@triton.jit
def _prefix(
    rows, needs, min_counts, out, buffers, N, need_stride, count_stride, n_buffer,
    BLOCK: tl.constexpr, BY: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """One program per row. The prefix ends at the highest key t with Σ weight[key ≥ t] ≥ need. A few passes over the
    row bracket t to a fraction of a nat, the logits inside the bracket are gathered into a buffer, and the search ends
    there. A last pass writes the prefix; keys equal to t are taken in column order."""
    row_index = tl.program_id(0).to(tl.int64)
    row = rows + row_index * N
    out += row_index * N
    buffer = buffers + row_index * n_buffer
    need = tl.load(needs + row_index * need_stride).to(tl.float32)
    at_least = tl.load(min_counts + row_index * count_stride).to(tl.float32)
    columns = tl.arange(0, BLOCK)

    top, log_sum, entropy = _statistics(row, N, BLOCK)
    if BY == "typical":
        top = tl.full([], 0.0, tl.float32)  # the best key
    low = tl.full([], -2139095041, tl.int64)  # −inf, which every key reaches
    high = _sortable(top)
    # First by value, whose differences are meaningful: most prefixes end within a few nats of the best key.
    low, high = _narrow(
        row, N, log_sum, entropy, top - 16, top - 4, top - 1, low, high, 0.0, 0.0, need, at_least, BLOCK, BY, COUNTS
    )
    for _ in range(2):
        floor = _float(low)
        step = (_float(high) - floor) / 4
        if (step > 0) & (step < 1e30):  # not while low is −inf
            low, high = _narrow(
                row, N, log_sum, entropy, floor + step, floor + 2 * step, floor + 3 * step,
                low, high, 0.0, 0.0, need, at_least, BLOCK, BY, COUNTS,
            )  # fmt: skip

    n_candidates = tl.full([], 0, tl.int32)
    mass_above = tl.zeros([BLOCK], tl.float32)
    count_above = tl.zeros([BLOCK], tl.float32)
    floor = _float(low)
    ceiling = _float(high)
    for start in range(0, N, BLOCK):
        x = tl.load(row + start + columns, mask=start + columns < N, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        is_candidate = (k >= floor) & (k <= ceiling) & (k > -float("inf"))
        mass_above += tl.where(k > ceiling, _weight(x, log_sum, BY), 0.0)
        count_above += tl.where(k > ceiling, 1.0, 0.0)
        n_new = tl.sum(is_candidate.to(tl.int32))
        if n_new > 0:
            slot = n_candidates + tl.cumsum(is_candidate.to(tl.int32), 0) - 1
            tl.store(buffer + slot, x, mask=is_candidate & (slot < n_buffer))
            n_candidates += n_new
    mass = tl.sum(mass_above)
    count = tl.sum(count_above)
    tl.debug_barrier()  # threads load what other threads stored
    if n_candidates <= n_buffer:
        low = _search(
            buffer, n_candidates, log_sum, entropy, low, high, mass, count, need, at_least, BLOCK, BY, COUNTS
        )  # fmt: skip
        t = _float(low)
        above_t = _float(low + 1)
        m, _b, _c, n, _d, _e = _mass_above(
            buffer, n_candidates, log_sum, entropy, above_t, above_t, above_t, BLOCK, BY, True
        )
        mass += m
        count += n
    else:  # too many keys are equal, or nearly so
        low = _search(row, N, log_sum, entropy, low, high, 0.0, 0.0, need, at_least, BLOCK, BY, COUNTS)
        t = _float(low)
        above_t = _float(low + 1)
        mass, _b, _c, count, _d, _e = _mass_above(row, N, log_sum, entropy, above_t, above_t, above_t, BLOCK, BY, True)

    for start in range(0, N, BLOCK):
        in_row = start + columns < N
        x = tl.load(row + start + columns, mask=in_row, other=-float("inf"))
        k = _key(x, log_sum, entropy, BY)
        kept = (k > t) | (x != x)  # keep NaN, so that the draw detects it
        is_tie = (k == t) & in_row
        if tl.sum(is_tie.to(tl.int32)) > 0:
            w = tl.where(is_tie, _weight(x, log_sum, BY), 0.0)
            ones = is_tie.to(tl.float32)
            mass_before = mass + tl.cumsum(w, 0) - w
            rank = count + tl.cumsum(ones, 0) - ones
            kept = kept | (is_tie & ((mass_before < need) | (rank < at_least)))
            mass += tl.sum(w)
            count += tl.sum(ones)
        tl.store(out + start + columns, tl.where(kept, x, -float("inf")), mask=in_row)


def prefix(rows: Tensor, need: Tensor, at_least: Tensor | int, by: str) -> Tensor:
    """rows (B, N) float32, need (B or 1, 1) → (B, N): the prefix unchanged, the others −inf; `at_least` stay."""
    B, N = rows.shape
    rows, out = rows.contiguous(), torch.empty_like(rows, memory_format=torch.contiguous_format)
    counts = not isinstance(at_least, int) or at_least > 1
    min_counts = torch.full((1, 1), at_least, device=rows.device) if isinstance(at_least, int) else at_least
    buffers = torch.empty(B, CANDIDATES, dtype=torch.float32, device=rows.device)
    with torch.cuda.device(rows.device):
        _prefix[(B,)](
            rows, need, min_counts, out, buffers, N, int(need.shape[0] > 1), int(min_counts.shape[0] > 1), CANDIDATES,
            BLOCK=BLOCK, BY=by, COUNTS=counts, num_warps=WARPS,
        )  # fmt: skip
    return out


@triton.jit
def _block_max(rows, best, N, n_blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """One program for BLOCKS blocks of a row. Compares integers, so that NaN is the largest and is not skipped."""
    row_index = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    columns = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    in_row = block < n_blocks
    x = tl.load(rows + row_index * N + columns, mask=in_row[:, None], other=-float("inf"))
    tl.store(best + row_index * n_blocks + block, _float(tl.max(_sortable(x), axis=1)), mask=in_row)


def block_max(rows: Tensor, width: int) -> Tensor:
    """rows (B, N) float32 → (B, N // width): the maximum of each `width` columns, a power of two."""
    B, N = rows.shape
    rows, n_blocks = rows.contiguous(), N // width
    best = torch.empty(B, n_blocks, dtype=torch.float32, device=rows.device)
    blocks = max(1, BLOCK // width)
    with torch.cuda.device(rows.device):
        _block_max[(B, triton.cdiv(n_blocks, blocks))](rows, best, N, n_blocks, WIDTH=width, BLOCKS=blocks, num_warps=8)
    return best


@triton.jit
def _best_of_part(rows, keys, N, row_stride, n_parts, BLOCK: tl.constexpr):
    """One program per part of a row. The key of a column has its logit in the high 32 bits, in the order of the floats,
    and in the low ones the columns after it: the largest key is the best column, and among equals the first."""
    row_index = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -9200000000000000000, tl.int64)  # below −inf
    for start in range(tl.program_id(1) * BLOCK, N, n_parts * BLOCK):
        column = start + lane
        x = tl.load(rows + row_index * row_stride + column, mask=column < N, other=-float("inf"))
        rank = tl.where(x == x, _sortable(x), 0x7FFFFFFF)  # NaN is the largest, whatever its sign
        best = tl.maximum(best, (rank << 32) | (0x7FFFFFFF - column.to(tl.int64)))
    tl.store(keys + row_index * n_parts + tl.program_id(1), tl.max(best))


@triton.jit
def _best_of_row(keys, out, n_parts, PARTS: tl.constexpr):
    """One program per row."""
    row_index = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    keys += row_index * n_parts
    best = tl.max(tl.load(keys + part, mask=part < n_parts, other=-9200000000000000000))
    is_finite = tl.abs(_float(best >> 32)) < float("inf")  # also not NaN
    tl.store(out + row_index, tl.where(is_finite, 0x7FFFFFFF - (best & 0x7FFFFFFF), -1))


def best_column(rows: Tensor) -> Tensor:
    """rows (B, N) float32 → (B,): the best column of each row, −1 if the row has NaN or +inf, or is all −inf."""
    B, N = rows.shape
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    n_parts = min(MAX_PARTS, triton.cdiv(N, BLOCK))
    keys = torch.empty(B, n_parts, dtype=torch.long, device=rows.device)
    out = torch.empty(B, dtype=torch.long, device=rows.device)
    with torch.cuda.device(rows.device):
        _best_of_part[(B, n_parts)](rows, keys, N, rows.stride(0), n_parts, BLOCK=BLOCK, num_warps=WARPS)
        _best_of_row[(B,)](keys, out, n_parts, PARTS=triton.next_power_of_2(n_parts), num_warps=1)
    return out

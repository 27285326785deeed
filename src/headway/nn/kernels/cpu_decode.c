/* A decode step of a GPT on a CPU: a list of operations, each computed by all threads together.

       y = act(F.linear(norm(x), weight, bias)) or residual + F.linear(x, weight, bias)  linear, for a few rows
       gate, up = F.linear(norm(x), weight, bias).chunk(2); y = F.silu(gate) * up        ... with SWIGLU

       q, k, v = transform(q, k, v)                                                      attention, one token per row
       keys[:, :, length], values[:, :, length] = k, v
       y = softmax(q keys^T / sqrt(K) + bias) values

   A step of a few rows takes as long as reading the weights, if nothing lies between the products: so each thread reads
   its own band of every matrix, norms and activations are computed on the way, and threads only meet at the end of an
   operation. cpu_decode.py compiles this file and writes the list. Sizes as in nn/__init__.py: B rows, D model width,
   H heads, G key/value heads, K width of a head. */

#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>

enum { NO_NORM, LAYER_NORM, RMS_NORM };
enum { NO_ACTIVATION, RELU, RELU2, GELU, GELU_TANH, SWIGLU };

typedef struct {
    int32_t n_in, n_out, norm, activation;
    float eps;
    const float *x, *gamma, *beta; /* (B, n_in), (n_in,), (n_in,) or NULL */
    const float *weight, *bias;    /* (n_out, n_in), (n_out,) or NULL; SWIGLU has 2 n_out rows, gate before up */
    const float *residual;         /* (B, n_out) or NULL; may be y */
    float *y;                      /* (B, n_out) */
} Linear;

typedef struct {
    int32_t H, G, K, capacity, bias_width;
    const float *qkv;        /* (B, (H + 2G) K) */
    float *keys, *values;    /* (B, G, capacity, K) of one layer */
    const int64_t *lengths;  /* (B,) the slot of the new token */
    const float *cos, *sin;  /* (capacity, K/2) or NULL: rotary positions */
    const float *offsets;    /* (capacity, K) or NULL: per-layer positions */
    const float *bias;       /* (H, bias_width) or NULL: of the distances 1 - bias_width ... 0 */
    float *y;                /* (B, H K) */
} Attention;

typedef struct {
    const Linear *linear; /* exactly one is not NULL */
    const Attention *attention;
} Operation;

/* ── products ──────────────────────────────────────────────────────────────────────────────────────────────────── */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    MAX_ROWS = 8,          /* of x: more sums do not fit into registers */
    LANES = 16,
    PREFETCH_ROWS = 4,     /* of the matrix: without this prefetch one row of x reads 88 of 100 GB/s */
    X_FLOATS_IN_L1 = 6144, /* of x that stay in the L1 cache: longer rows are multiplied in parts */
};
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4))); /* as many registers as it takes */
typedef float Half __attribute__((vector_size(2 * LANES)));
typedef float Quarter __attribute__((vector_size(LANES)));

ALWAYS_INLINE float total(Vector v) {
    union { Vector whole; Half halves[2]; } sixteen = {v};
    union { Half whole; Quarter halves[2]; } eight = {sixteen.halves[0] + sixteen.halves[1]};
    Quarter four = eight.halves[0] + eight.halves[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* A row w of a matrix times B rows of x, which are n apart. With B known to the compiler, the sums are registers. */
ALWAYS_INLINE void dots(const float *w, const float *x, ptrdiff_t length, ptrdiff_t n, int B, float *y) {
    Vector sums[MAX_ROWS] = {{0}};
    ptrdiff_t j = 0;
    for (; j + LANES <= length; j += LANES) {
        __builtin_prefetch(w + PREFETCH_ROWS * n + j);
        Vector weights = *(const Vector *)(w + j);
#pragma GCC unroll 8
        for (int b = 0; b < B; b++) sums[b] += weights * *(const Vector *)(x + b * n + j);
    }
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) y[b] = total(sums[b]);
    for (; j < length; j++) /* the rest, if the length is not a multiple of LANES */
#pragma GCC unroll 8
        for (int b = 0; b < B; b++) y[b] += w[j] * x[b * n + j];
}

static void row_times(const float *w, const float *x, ptrdiff_t length, ptrdiff_t n, int B, float *y) {
    switch (B) {
        case 1: dots(w, x, length, n, 1, y); break;
        case 2: dots(w, x, length, n, 2, y); break;
        case 3: dots(w, x, length, n, 3, y); break;
        case 4: dots(w, x, length, n, 4, y); break;
        case 5: dots(w, x, length, n, 5, y); break;
        case 6: dots(w, x, length, n, 6, y); break;
        case 7: dots(w, x, length, n, 7, y); break;
        case 8: dots(w, x, length, n, 8, y); break;
    }
}

/* y = residual + x W^T + b for the rows first ... last - 1 of W. */
static void product(const float *w, const float *x, ptrdiff_t n, ptrdiff_t n_out, int B, ptrdiff_t first, ptrdiff_t last,
                    const float *bias, const float *residual, float *y) {
    ptrdiff_t part = X_FLOATS_IN_L1 / B / LANES * LANES;
    for (ptrdiff_t j = 0; j < n; j += part)
        for (ptrdiff_t i = first; i < last; i++) {
            float sums[MAX_ROWS];
            row_times(w + i * n + j, x + j, n - j < part ? n - j : part, n, B, sums);
            for (int b = 0; b < B; b++) {
                ptrdiff_t at = b * n_out + i;
                float before = j ? y[at] : (bias ? bias[i] : 0) + (residual ? residual[at] : 0);
                y[at] = before + sums[b];
            }
        }
}

/* ── elementwise ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* e^x to 2 units of the last place, without a branch, so that loops over it become vectors: x = k ln 2 + r, and a
   polynomial of r (Cephes). Below -87 it is 1e-38, above 88 infinity; of NaN it is NaN. */
ALWAYS_INLINE float exponential(float given) {
    float x = given < -87.0f ? -87.0f : given > 88.0f ? 88.0f : given;
    float k = rintf(x * 1.44269504f), r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    union { int32_t bits; float value; } power = {((int32_t)k + 127) << 23};
    return given > 88.0f ? INFINITY : (p * r * r + r + 1) * power.value;
}

/* x Φ(x) by 1 - erf(z) = (a1 t + ... + a5 t^5) e^(-z²), t = 1 / (1 + p z): as nn/feedforward.py, to 1.5e-7. */
ALWAYS_INLINE float gelu(float x) {
    float t = 1 / (1 + 0.23164190f * fabsf(x));
    float series = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float tail = 0.5f * series * exponential(-0.5f * x * x);
    return x * (x >= 0 ? 1 - tail : tail);
}

ALWAYS_INLINE float sigmoid(float x) { return 1 / (1 + exponential(-x)); }

/* y[first:last] = act(y[first:last]) for one row; `up` is the other factor of SWIGLU. */
static void activate(int activation, float *y, const float *up, ptrdiff_t first, ptrdiff_t last) {
#define EACH(expression) \
    for (ptrdiff_t i = first; i < last; i++) { float x = y[i]; y[i] = (expression); } break
    switch (activation) {
        case RELU: EACH(x <= 0 ? 0 : x); /* so, NaN stays NaN */
        case RELU2: EACH(x <= 0 ? 0 : x * x);
        case GELU: EACH(gelu(x));
        case GELU_TANH: EACH(x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x)));
        case SWIGLU: EACH(x * sigmoid(x) * up[i]);
    }
}

/* norm(x), computed by every thread for itself: that is faster than to wait for one of them. */
static const float *normalised(const Linear *op, int B, float *scratch) {
    ptrdiff_t n = op->n_in;
    for (int b = 0; b < B; b++) {
        const float *x = op->x + b * n;
        float *out = scratch + b * n, mean = 0, square = 0;
        if (op->norm == LAYER_NORM) {
#pragma omp simd reduction(+ : mean)
            for (ptrdiff_t j = 0; j < n; j++) mean += x[j];
            mean /= n;
        }
#pragma omp simd reduction(+ : square)
        for (ptrdiff_t j = 0; j < n; j++) square += (x[j] - mean) * (x[j] - mean);
        float rstd = 1 / sqrtf(square / n + op->eps);
        for (ptrdiff_t j = 0; j < n; j++) out[j] = (x[j] - mean) * rstd * op->gamma[j];
        if (op->beta)
            for (ptrdiff_t j = 0; j < n; j++) out[j] += op->beta[j];
    }
    return scratch;
}

static void linear(const Linear *op, int B, int thread, int n_threads, float *scratch) {
    ptrdiff_t n = op->n_in, n_out = op->n_out;
    ptrdiff_t first = n_out * thread / n_threads, last = n_out * (thread + 1) / n_threads; /* the band of this thread */
    const float *x = op->norm == NO_NORM ? op->x : normalised(op, B, scratch);
    float *up = scratch + B * n;
    product(op->weight, x, n, n_out, B, first, last, op->bias, op->residual, op->y);
    if (op->activation == SWIGLU)
        product(op->weight + n_out * n, x, n, n_out, B, first, last, op->bias ? op->bias + n_out : NULL, NULL, up);
    for (int b = 0; b < B; b++) activate(op->activation, op->y + b * n_out, up + b * n_out, first, last);
}

/* ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void transform(const Attention *op, ptrdiff_t pos, int is_value, const float *x, float *out) {
    int K = op->K, half = K / 2;
    for (int j = 0; j < K; j++) out[j] = x[j];
    if (op->cos && !is_value) {
        const float *c = op->cos + pos * half, *s = op->sin + pos * half;
        for (int j = 0; j < half; j++) {
            out[j] = x[j] * c[j] - x[j + half] * s[j];
            out[j + half] = x[j + half] * c[j] + x[j] * s[j];
        }
    }
    if (op->offsets)
        for (int j = 0; j < K; j++) out[j] += op->offsets[pos * K + j];
}

/* y += the weighted sum of B rows */
ALWAYS_INLINE void add_rows(const float *weights, const float *rows, int K, int B, float *restrict y) {
    for (int j = 0; j < K; j++) {
        float sum = 0;
#pragma GCC unroll 8
        for (int b = 0; b < B; b++) sum += weights[b] * rows[b * K + j];
        y[j] += sum;
    }
}

/* One head of one row. The new key and value are computed by every head that shares them, and stored by the first. */
static void head(const Attention *op, int b, int h, float *scratch) {
    int K = op->K, g = h / (op->H / op->G), is_first = h % (op->H / op->G) == 0;
    ptrdiff_t pos = op->lengths[b] < op->capacity ? op->lengths[b] : op->capacity - 1;
    const float *row = op->qkv + (ptrdiff_t)b * (op->H + 2 * op->G) * K;
    float *keys = op->keys + ((ptrdiff_t)b * op->G + g) * op->capacity * K;
    float *values = op->values + ((ptrdiff_t)b * op->G + g) * op->capacity * K;
    float *q = scratch, *k = q + K, *v = k + K, *scores = v + K;
    transform(op, pos, 0, row + (ptrdiff_t)h * K, q);
    transform(op, pos, 0, row + (ptrdiff_t)(op->H + g) * K, k);
    transform(op, pos, 1, row + (ptrdiff_t)(op->H + op->G + g) * K, v);

    float scale = 1 / sqrtf(K), maximum = -INFINITY, sum = 0, *y = op->y + ((ptrdiff_t)b * op->H + h) * K;
    for (ptrdiff_t s = 0; s < pos; s += MAX_ROWS)
        row_times(q, keys + s * K, K, K, pos - s < MAX_ROWS ? (int)(pos - s) : MAX_ROWS, scores + s);
    row_times(q, k, K, K, 1, scores + pos);
    for (ptrdiff_t s = 0; s <= pos; s++) {
        scores[s] *= scale;
        if (op->bias) scores[s] += op->bias[(ptrdiff_t)h * op->bias_width + op->bias_width - 1 + s - pos];
    }
    for (ptrdiff_t s = 0; s <= pos; s++) maximum = scores[s] > maximum ? scores[s] : maximum;
    for (ptrdiff_t s = 0; s <= pos; s++) scores[s] = exponential(scores[s] - maximum);
    for (ptrdiff_t s = 0; s <= pos; s++) sum += scores[s];
    for (int j = 0; j < K; j++) y[j] = scores[pos] * v[j];
    ptrdiff_t s = 0;
    for (; s + MAX_ROWS <= pos; s += MAX_ROWS) add_rows(scores + s, values + s * K, K, MAX_ROWS, y);
    for (; s < pos; s++) add_rows(scores + s, values + s * K, K, 1, y);
    for (int j = 0; j < K; j++) y[j] /= sum;
    if (is_first)
        for (int j = 0; j < K; j++) keys[pos * K + j] = k[j], values[pos * K + j] = v[j];
}

static void attention(const Attention *op, int B, int thread, int n_threads, float *scratch) {
    ptrdiff_t n = (ptrdiff_t)B * op->H;
    for (ptrdiff_t i = n * thread / n_threads; i < n * (thread + 1) / n_threads; i++)
        head(op, (int)(i / op->H), (int)(i % op->H), scratch);
}

/* ── all operations ────────────────────────────────────────────────────────────────────────────────────────────── */

/* scratch (n_threads, scratch_size) */
void run(const Operation *operations, int n_operations, int B, int n_threads, float *scratch, ptrdiff_t scratch_size) {
#pragma omp parallel num_threads(n_threads)
    for (int i = 0; i < n_operations; i++) {
        int thread = omp_get_thread_num(), n = omp_get_num_threads();
        if (operations[i].linear)
            linear(operations[i].linear, B, thread, n, scratch + thread * scratch_size);
        else
            attention(operations[i].attention, B, thread, n, scratch + thread * scratch_size);
#pragma omp barrier
    }
}

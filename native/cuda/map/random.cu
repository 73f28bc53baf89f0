/* map/random.cu: random ops by kernels/philox.h: the numbers that the CPU's kernels make, to the
 * last bit where the CPU has fused multiply-add. So every sum of a product here is written as fmaf:
 * no compiler chooses. The key is read on the card. A thread makes a block: 16 bytes.
 */
#include "kernels.h"
#include "kernels/philox.h"

struct source {
  const uint64_t *key;
  uint32_t stream;
  int32_t vector; /* four elements at a time */
  int64_t count;
  float *out;
  const float *x; /* dropout */
  float a, b;     /* low, range; mean, scale; ratio, factor */
};

struct words {
  uint32_t w[4];
};

static __device__ __forceinline__ words philox(const source &s, uint64_t block) {
  const uint64_t seed = s.key[0];
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = s.stream, c3 = static_cast<uint32_t>(s.key[1]);
#pragma unroll
  for (int round = 0; round < DF_PHILOX_ROUNDS; round++) {
    df_philox_round(&c0, &c1, &c2, &c3, k0, k1);
    k0 += DF_PHILOX_KEY_0;
    k1 += DF_PHILOX_KEY_1;
  }
  return {{c0, c1, c2, c3}};
}

/* ---- Functions as in native/cpu/simd/vmath.h
 * ----------------------------------------------------- */

/* log x for normal x in (0, 1]: x = 2^n (1 + f), log x = n ln2 + f - f^2/2 + f^3 P(f). */
static __device__ __forceinline__ float log_of(float x) {
  const int32_t above = __float_as_int(x) - 0x3f3504f3; /* the bits of sqrt(1/2) */
  const float n = static_cast<float>(above >> 23);
  const float f = __int_as_float((above & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float p = 0x1.147204p-4f;
  p = fmaf(p, f, -0x1.de00e4p-4f);
  p = fmaf(p, f, 0x1.e6bff2p-4f);
  p = fmaf(p, f, -0x1.fc28dep-4f);
  p = fmaf(p, f, 0x1.233ba4p-3f);
  p = fmaf(p, f, -0x1.555c44p-3f);
  p = fmaf(p, f, 0x1.99a476p-3f);
  p = fmaf(p, f, -0x1.000006p-2f);
  p = fmaf(p, f, 0x1.555548p-2f);
  const float square = f * f;
  const float tail = fmaf(n, 0x1.7f7d1cp-20f, p * (square * f));
  return fmaf(n, 0x1.62e4p-1f, f + fmaf(-0.5f, square, tail));
}

/* sin(x + shift pi / 2); the remainder is taken in double, the first part of pi / 2 has 33 bits. */
static __device__ __forceinline__ float sin_shifted(float x, int32_t shift) {
  const double shifted = fma(static_cast<double>(x), 0x1.45f306dc9c883p-1, 0x1.8p52);
  const double n = shifted - 0x1.8p52;
  const float r = static_cast<float>(
      fma(-n, 0x1.0b4611a626331p-34, fma(-n, 0x1.921fb544p+0, static_cast<double>(x))));
  const int32_t quadrant = static_cast<int32_t>(n) + shift;
  const float square = r * r;
  float s = -0x1.994388p-13f;
  s = fmaf(s, square, 0x1.11073ap-7f);
  s = fmaf(s, square, -0x1.555546p-3f);
  s = fmaf(s, square * r, r);
  float c = 0x1.99eb4ap-16f;
  c = fmaf(c, square, -0x1.6c0c32p-10f);
  c = fmaf(c, square, 0x1.55554ap-5f);
  c = fmaf(c, square * square, fmaf(-0.5f, square, 1.0f));
  const float y = quadrant & 1 ? c : s;
  return quadrant & 2 ? -y : y;
}

/* ---- The four elements of a block ----------------------------------------------------------- */

struct uniform {
  static __device__ float4 make(const source &s, const words &w, float4) {
    return {fmaf(df_philox_upper(w.w[0]) * DF_PHILOX_UNIT, s.b, s.a),
            fmaf(df_philox_upper(w.w[1]) * DF_PHILOX_UNIT, s.b, s.a),
            fmaf(df_philox_upper(w.w[2]) * DF_PHILOX_UNIT, s.b, s.a),
            fmaf(df_philox_upper(w.w[3]) * DF_PHILOX_UNIT, s.b, s.a)};
  }
};

struct normal {
  static __device__ float2 pair(const source &s, uint32_t first, uint32_t second) {
    const float r = s.b * sqrtf(-2.0f * log_of((df_philox_upper(first) + 1.0f) * DF_PHILOX_UNIT));
    const float t = df_philox_upper(second) * DF_PHILOX_ANGLE;
    return {fmaf(r, sin_shifted(t, 1), s.a), fmaf(r, sin_shifted(t, 0), s.a)};
  }
  static __device__ float4 make(const source &s, const words &w, float4) {
    const float2 low = pair(s, w.w[0], w.w[1]), high = pair(s, w.w[2], w.w[3]);
    return {low.x, low.y, high.x, high.y};
  }
};

struct drop {
  static __device__ float one(const source &s, uint32_t word, float x) {
    return df_philox_upper(word) * DF_PHILOX_UNIT >= s.a ? x * s.b : 0.0f;
  }
  static __device__ float4 make(const source &s, const words &w, float4 x) {
    return {one(s, w.w[0], x.x), one(s, w.w[1], x.y), one(s, w.w[2], x.z), one(s, w.w[3], x.w)};
  }
};

template <typename Maker> __global__ void __launch_bounds__(DF_BLOCK) generate(source s) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x, i = block * 4;
  if (i >= s.count)
    return;
  const words w = philox(s, static_cast<uint64_t>(block));
  float4 x{0.0f, 0.0f, 0.0f, 0.0f};
  if (s.vector) {
    if (s.x)
      x = *reinterpret_cast<const float4 *>(s.x + i);
    *reinterpret_cast<float4 *>(s.out + i) = Maker::make(s, w, x);
    return;
  }
  const int64_t left = s.count - i;
  if (s.x)
    x = {s.x[i], left > 1 ? s.x[i + 1] : 0.0f, left > 2 ? s.x[i + 2] : 0.0f,
         left > 3 ? s.x[i + 3] : 0.0f};
  const float4 made = Maker::make(s, w, x);
  s.out[i] = made.x;
  if (left > 1)
    s.out[i + 1] = made.y;
  if (left > 2)
    s.out[i + 2] = made.z;
  if (left > 3)
    s.out[i + 3] = made.w;
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename Maker>
static df_status run(const df_call *call, source s, int32_t key, int64_t stream) {
  s.key = df_in<const uint64_t>(call, key);
  s.stream = static_cast<uint32_t>(stream);
  s.out = df_out<float>(call, 0);
  s.count = df_elements(call->outputs[0]);
  if (s.count == 0)
    return DF_OK;
  const uintptr_t both = reinterpret_cast<uintptr_t>(s.out) | reinterpret_cast<uintptr_t>(s.x);
  s.vector = s.count % 4 == 0 && both % 16 == 0;
  return DF_LAUNCH(call, (generate<Maker>), df_blocks(s.count, DF_BLOCK * 4), DF_BLOCK, 0, s);
}

/* random_uniform(key; shape, low, high, dtype, stream) */
static df_status uniform_run(const df_call *call) {
  const double low = df_attr_float(call, DF_RANDOM_UNIFORM_LOW),
               high = df_attr_float(call, DF_RANDOM_UNIFORM_HIGH);
  source s{};
  s.a = static_cast<float>(low);
  s.b = static_cast<float>(high - low);
  return run<uniform>(call, s, 0, df_attr_int(call, DF_RANDOM_UNIFORM_STREAM));
}

/* random_normal(key; shape, mean, scale, dtype, stream) */
static df_status normal_run(const df_call *call) {
  source s{};
  s.a = static_cast<float>(df_attr_float(call, DF_RANDOM_NORMAL_MEAN));
  s.b = static_cast<float>(df_attr_float(call, DF_RANDOM_NORMAL_SCALE));
  return run<normal>(call, s, 0, df_attr_int(call, DF_RANDOM_NORMAL_STREAM));
}

/* dropout(x, key; ratio, stream); with ratio 1 nothing stays. */
static df_status dropout_run(const df_call *call) {
  const double ratio = df_attr_float(call, DF_DROPOUT_RATIO);
  source s{};
  s.x = df_in<const float>(call, 0);
  s.a = static_cast<float>(ratio);
  s.b = ratio < 1.0 ? static_cast<float>(1.0 / (1.0 - ratio)) : 0.0f;
  return run<drop>(call, s, 1, df_attr_int(call, DF_DROPOUT_STREAM));
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("random_uniform", "f32", "u64->f32", nullptr, .run = uniform_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("random_normal", "f32", "u64->f32", nullptr, .run = normal_run, .capturable = 1),
    DF_CUDA_KERNEL("dropout", "f32", "f32,u64->f32", "0<0", .run = dropout_run, .capturable = 1)};
DF_CUDA_FAMILY(random, records);

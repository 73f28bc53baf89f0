/* quantized/pack.h: bytes in the order of tiles (see quantized/product.h). */
#ifndef DF_CPU_QUANTIZED_PACK_H
#define DF_CPU_QUANTIZED_PACK_H

#include "quantized/product.h"

/* Bytes of |count| sums of weights and of a note behind them, their last integer: whether the
 * packed weights are narrow. */
static inline int64_t df_byte_sum_bytes(int64_t count) {
  return df_round_up((count + 1) * (int64_t)sizeof(int32_t), 64);
}

static inline void df_byte_note_narrow(int32_t *sums, int64_t sum_bytes, const uint8_t *packed,
                                       int64_t bytes) {
  sums[sum_bytes / (int64_t)sizeof *sums - 1] = df_byte_are_narrow(packed, bytes);
}

static inline int32_t df_byte_noted_narrow(const uint8_t *sums, int64_t sum_bytes) {
  int32_t noted;
  memcpy(&noted, sums + sum_bytes - sizeof noted, sizeof noted);
  return noted;
}

/* Bytes of the flags of |panels|, which lie behind them. */
static inline int64_t df_byte_flag_bytes(int64_t panels, int64_t steps) {
  return df_round_up(panels * df_byte_flags(steps), 64);
}

/* Notes of panels behind sums, and flags behind the panels. The steps of a panel have |line| bytes,
 * those of the last |last|. */
static inline void df_byte_note_panels(int32_t *sums, int64_t sum_bytes, uint8_t *packed,
                                       int64_t panels, int64_t steps, int64_t line, int64_t last) {
  uint8_t *crowded = packed + panels * steps * line;
  df_byte_note_narrow(sums, sum_bytes, packed, panels * steps * line);
  for (int64_t i = 0; i < panels; i++)
    df_byte_mark_crowded(crowded + i * df_byte_flags(steps), packed + i * steps * line, steps,
                         i < panels - 1 ? line : last);
}

/* The flags of panels [first, ...) of |panels|, if they are narrow. */
static inline const uint8_t *df_byte_noted_panels(const uint8_t *sums, int64_t sum_bytes,
                                                  int64_t panels, int64_t steps, int64_t line,
                                                  int64_t first) {
  return df_byte_noted_narrow(sums, sum_bytes)
             ? sums + sum_bytes + panels * steps * line + first * df_byte_flags(steps)
             : NULL;
}

/* The bits that make bytes of |dtype| unsigned or signed. */
static inline uint8_t df_byte_sign(int32_t dtype, int32_t to_unsigned) {
  return (dtype == DF_UINT8) == (to_unsigned != 0) ? 0 : 0x80;
}

/* A zero point as it is among inverted bytes. */
static inline int32_t df_byte_zero(const df_tensor *zero, int64_t index, int32_t dtype,
                                   int32_t to_unsigned) {
  int32_t value = 0;
  if (zero && zero->dtype != DF_NONE) {
    const int64_t at = df_elements(zero) == 1 ? 0 : index;
    value =
        dtype == DF_UINT8 ? ((const uint8_t *)zero->data)[at] : ((const int8_t *)zero->data)[at];
  }
  if (to_unsigned)
    return dtype == DF_UINT8 ? value : value + 128;
  return dtype == DF_UINT8 ? value - 128 : value;
}

/* line[4 i + lane] = from[lane][i] for lanes < |lanes|, 0 for the others. */
static inline void df_byte_interleave(uint8_t *line, const uint8_t *const from[DF_BYTE_STEP],
                                      int64_t lanes, int64_t count, uint8_t sign) {
  DF_ASSUME(lanes > 0 && lanes <= DF_BYTE_STEP);
  const uint32_t signs = sign * (0x01010101u >> 8 * (DF_BYTE_STEP - lanes));
  uint32_t step;
  if (lanes == DF_BYTE_STEP) {
    const uint8_t *a = from[0], *b = from[1], *c = from[2], *d = from[3];
    DF_IVDEP
    for (int64_t i = 0; i < count; i++) {
      step = (a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24) ^ signs;
      memcpy(line + DF_BYTE_STEP * i, &step, sizeof step);
    }
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    step = 0;
    for (int64_t lane = 0; lane < lanes; lane++)
      step |= (uint32_t)from[lane][i] << 8 * lane;
    step ^= signs;
    memcpy(line + DF_BYTE_STEP * i, &step, sizeof step);
  }
}

/* Columns of a matrix of |k| rows as panels; element (p, j) lies at from[p * row + j * column]. */
static inline void df_byte_pack_columns(uint8_t *to, const uint8_t *from, int64_t row,
                                        int64_t column, int64_t columns, int64_t k, uint8_t sign) {
  const int64_t steps = df_byte_steps(k), panel = steps * DF_BYTE_LINE;
  for (int64_t j = 0; j < columns; j += DF_BYTE_COLUMNS, to += panel) {
    const int64_t count = df_min(DF_BYTE_COLUMNS, columns - j), line = df_byte_line(count);
    memset(to, 0, (size_t)(steps * line));
    if (row != 1 || column == 1) {
      for (int64_t p = 0; p < steps; p++) {
        const int64_t lanes = df_min(DF_BYTE_STEP, k - p * DF_BYTE_STEP);
        const uint8_t *rows[DF_BYTE_STEP] = {0};
        uint8_t gathered[DF_BYTE_STEP][DF_BYTE_COLUMNS];
        for (int64_t lane = 0; lane < lanes; lane++) {
          const uint8_t *source = from + (p * DF_BYTE_STEP + lane) * row + j * column;
          rows[lane] = column == 1 ? source : gathered[lane];
          for (int64_t i = 0; column != 1 && i < count; i++)
            gathered[lane][i] = source[i * column];
        }
        df_byte_interleave(to + p * line, rows, lanes, count, sign);
      }
      continue;
    }
    for (int64_t i = 0; i < count; i++) {
      const uint8_t *source = from + (j + i) * column;
      uint8_t *step = to + DF_BYTE_STEP * i;
      int64_t p = 0;
      for (; p + DF_BYTE_STEP <= k; p += DF_BYTE_STEP, step += line) {
        uint32_t four;
        memcpy(&four, source + p, sizeof four);
        four ^= sign * 0x01010101u;
        memcpy(step, &four, sizeof four);
      }
      for (int64_t lane = 0; p < k; p++, lane++)
        step[lane] = source[p] ^ sign;
    }
  }
}

/* Bytes from one packed row to the next: a power of two apart they would share few sets of the
 * first cache. */
static inline int64_t df_byte_row(int64_t k) {
  const int64_t bytes = df_byte_steps(k) * DF_BYTE_STEP;
  return bytes % 1024 ? bytes : bytes + 64;
}

/* Rows with their steps together; element (i, p) lies at from[i * row + p * column]. */
static inline void df_byte_pack_rows(uint8_t *to, const uint8_t *from, int64_t row, int64_t column,
                                     int64_t rows, int64_t k, uint8_t sign) {
  const int64_t bytes = df_byte_row(k), padded = df_byte_steps(k) * DF_BYTE_STEP;
  for (int64_t i = 0; i < rows; i++, to += bytes, from += row) {
    if (column == 1) {
      for (int64_t p = 0; p < k; p++)
        to[p] = from[p] ^ sign;
    } else {
      for (int64_t p = 0; p < k; p++)
        to[p] = from[p * column] ^ sign;
    }
    memset(to + k, 0, (size_t)(padded - k));
  }
}

#endif

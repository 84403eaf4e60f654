// Attention over pages, and what comes before it: norm and rotation of heads.

#include <algorithm>
#include <limits>
#include <vector>

#include "floats.h"
#include "pool.h"

// x: [B, L, heads, D]; weight: [D] or null; offsets: [B] position of each row's first token; periods: [D/2]. y: [B, heads, L, D].
extern "C" void norm_rope(
    const float* x, const float* weight, float eps, const int32_t* offsets, const float* periods, float scale, int64_t B, int64_t L,
    int64_t heads, int64_t D, float* y, int32_t threads) {
  Pool::of_process(threads).run(B * L, [&](int64_t token) {
    const int64_t b = token / L, l = token % L, half = D / 2;
    std::vector<float> cosine(half), sine(half), normed(D);
    for (int64_t i = 0; i < half; i++) {
      const float angle = (float)(offsets[b] + l) / periods[i];
      cosine[i] = std::cos(angle) * scale, sine[i] = std::sin(angle) * scale;
    }
    for (int64_t h = 0; h < heads; h++) {
      const float* from = x + (token * heads + h) * D;
      float* to = y + ((b * heads + h) * L + l) * D;
      if (weight) {
        rms_norm(from, weight, eps, D, normed.data());
        from = normed.data();
      }
      for (int64_t i = 0; i < half; i++) {
        to[i] = from[i] * cosine[i] - from[i + half] * sine[i];
        to[i + half] = from[i + half] * cosine[i] + from[i] * sine[i];
      }
    }
  });
}

// q, y: [B, H, L, D]; k_new, v_new: [B, G, L, D]; pool: [P, G, page, D]; key_pages, value_pages: [B, M] ids into P; lengths: [B] tokens in
// those pages. Causal; window: last positions that a token sees, itself included, 0 for all. A row's order of additions depends on nothing but
// positions. Slots that nobody may see are not touched.
extern "C" void attend(
    const float* q, const float* k_new, const float* v_new, const float* pool, const int32_t* key_pages, const int32_t* value_pages,
    const int32_t* lengths, int64_t B, int64_t H, int64_t G, int64_t L, int64_t D, int64_t M, int64_t page, float scale, int64_t window,
    float* y, int32_t threads) {
  constexpr int64_t QUERIES = 8;  // tokens that read a key while it is in the first cache
  const int64_t repeats = H / G, blocks = (L + QUERIES - 1) / QUERIES;
  Pool::of_process(threads).run(B * G * blocks, [&](int64_t task) {
    const int64_t b = task / (G * blocks), g = task / blocks % G, begin = task % blocks * QUERIES;
    const int64_t end = std::min(begin + QUERIES, L), length = lengths[b], rows = repeats * (end - begin);
    const auto first = [&](int64_t l) { return window ? std::max<int64_t>(0, length + l - window + 1) : 0; };
    const int64_t low = first(begin) / 8 * 8, count = (length + end - low + 7) / 8 * 8;
    const auto at = [&](const float* fresh, const int32_t* pages, int64_t j) {
      if (j >= length) return fresh + ((b * G + g) * L + j - length) * D;
      return pool + ((pages[b * M + j / page] * G + g) * page + j % page) * D;
    };
    const auto head = [&](int64_t row) { return (b * H + g * repeats + row % repeats) * L + begin + row / repeats; };
    std::vector<float> weights(rows * count, -std::numeric_limits<float>::infinity()), sums(rows);
    for (int64_t j = low; j < length + end; j++) {
      const float* key = at(k_new, key_pages, j);
      for (int64_t row = 0; row < rows; row++) {
        const int64_t l = begin + row / repeats;
        if (j >= first(l) && j <= length + l) weights[row * count + j - low] = scale * dot(q + head(row) * D, key, D);
      }
    }
    for (int64_t row = 0; row < rows; row++) {
      float* scores = &weights[row * count];
      const float most = *std::max_element(scores, scores + count);
      Floats sum = {};
      for (int64_t j = 0; j < count; j += 8) {
        const Floats weight = exponential(load(scores + j) - most);
        sum += weight;
        store(scores + j, weight);
      }
      sums[row] = add(sum);
      std::fill_n(y + head(row) * D, D, 0.0f);
    }
    for (int64_t j = low; j < length + end; j++) {
      const float* value = at(v_new, value_pages, j);
      for (int64_t row = 0; row < rows; row++) {
        const int64_t l = begin + row / repeats;
        if (j < first(l) || j > length + l) continue;
        const float weight = weights[row * count + j - low];
        float* to = y + head(row) * D;
        for (int64_t d = 0; d < D; d++) to[d] += weight * value[d];
      }
    }
    for (int64_t row = 0; row < rows; row++) {
      for (int64_t d = 0; d < D; d++) y[head(row) * D + d] /= sums[row];
    }
  });
}

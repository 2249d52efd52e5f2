// A product of two matrices with operands in bfloat16 and sums in float32, for what lies outside the recurrence.
#include "passes.h"

namespace hmrnn {

namespace {

constexpr int64_t kRows = 128, kPanelsAtOnce = 8;

// c = a . b, where b is packed; in parts of kRows rows.
void multiply_rows(const Pool::Lease& lease, const HmrnnProduct& p, const Panels<float>& panels) {
  std::vector<RowList<float>> lists(lease.threads());
  std::vector<RoundedRows> rounded(lease.threads());
  share_out(lease, (p.rows + kRows - 1) / kRows, [&](int64_t k, int id) {
    lists[id].clear();
    for (int64_t m = k * kRows; m < std::min(p.rows, (k + 1) * kRows); ++m)
      lists[id].add(row(p.a, m, p.depth), row(p.c, m, p.columns));
    multiply(panels, 0, panels.count(), lists[id], false, rounded[id]);
  });
}

// c = a^T . b, where a is (depth, rows) and b is (depth, columns): sums over a long depth, in parts of c.
void multiply_sums(const Pool::Lease& lease, const HmrnnProduct& p) {
  constexpr int64_t kDepth = 512;
  struct Room {
    Panels<float> panels;
    RoundedRows rounded;
    std::vector<float*> to;
  };
  const int64_t size = std::max<int64_t>(kRows, (p.rows + 2 * lease.threads() - 1) / (2 * lease.threads()));
  std::vector<Room> rooms(lease.threads());
  share_out(lease, (p.rows + size - 1) / size, [&](int64_t k, int id) {
    Room& room = rooms[id];
    const int64_t begin = k * size, end = std::min(p.rows, begin + size);
    room.to.clear();
    for (int64_t m = begin; m < end; ++m) room.to.push_back(row(p.c, m, p.columns));
    for (int64_t first = 0; first < p.depth; first += kDepth) {
      const int64_t depth = std::min(kDepth, p.depth - first);
      room.panels.allocate(depth, p.columns, true);
      room.panels.pack_rows([&](int64_t d) { return row(p.b, first + d, p.columns); }, 0, room.panels.count());
      room.rounded.take_transposed([&](int64_t d) { return row(p.a, first + d, p.rows); }, depth, begin, end);
      room.rounded.multiply(room.panels.pairs(), 0, room.panels.count(), p.columns, room.to.data(), first > 0);
    }
  });
}

}  // namespace

void product(const HmrnnProduct& p) {
  const Pool::Lease lease(p.rows * p.columns * p.depth < kWorthThreads ? 1 : p.threads);
  if (p.sums) return multiply_sums(lease, p);
  Panels<float> panels;
  panels.allocate(p.depth, p.columns, true);
  share_out(lease, (panels.count() + kPanelsAtOnce - 1) / kPanelsAtOnce, [&](int64_t k, int) {
    const int64_t begin = k * kPanelsAtOnce, end = std::min(panels.count(), begin + kPanelsAtOnce);
    if (p.transposed)
      panels.pack_transposed(p.b, begin, end);
    else
      panels.pack_rows([&](int64_t d) { return row(p.b, d, p.columns); }, begin, end);
  });
  multiply_rows(lease, p, panels);
}

}  // namespace hmrnn

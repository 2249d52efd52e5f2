// The forward pass. Batch rows do not depend on each other, so each goes at its own pace: a row that has an event in a
// layer waits there until many do, and then their products are made at once. COPY steps cost a few scalars.
#include "passes.h"

namespace hmrnn {

namespace {

constexpr int64_t kRowsOfGroup = 16;      // below that, threads read the weights more often than it is worth
constexpr int64_t kWorthMeeting = 1 << 18;  // multiply-adds of a member between two meetings

// `work`: multiply-adds of a batch row in the largest product.
template <typename T>
std::vector<Group<T>> groups_of(int64_t rows, int threads, int64_t work) {
  const int64_t count = std::max<int64_t>(1, std::min<int64_t>(threads, rows / kRowsOfGroup));
  std::vector<Group<T>> groups(count);
  for (int64_t g = 0; g < count; ++g) {
    const Share share(rows, g, count), team(threads, g, count);
    groups[g].begin = share.begin;
    groups[g].end = share.end;
    const int64_t worth = std::max<int64_t>(1, groups[g].rows() * work / kWorthMeeting);
    groups[g].team = static_cast<int>(std::min(team.end - team.begin, worth));
  }
  return groups;
}

// Multiply-adds of a batch row in the largest product of a call, and of all products with U, were there no COPY.
struct WorkOf {
  int64_t largest = 0, all = 0;

  explicit WorkOf(const HmrnnCall& call) {
    for (int64_t l = 0; l < call.layers; ++l) {
      const int64_t work = 4 * call.hidden[l] * call.hidden[l];
      all += work * call.steps * call.rows;
      largest = std::max(largest, work);
    }
  }
};

// What one thread does. The members of a group keep the books each for itself: that is cheaper than to wait for one that
// does. They share products by columns, and everything else by batch rows.
template <typename T>
class ForwardWorker : Books<T> {
 public:
  ForwardWorker(ForwardPass<T>& pass, Group<T>& group, int id)
      : Books<T>(pass.tables, group), pass_(pass), member_(pass.member(group, id)), mine_(group.rows(), id, group.team),
        scratch_(pass.widest), z_(group.rows() * L), t_(group.rows()) {
    for (int64_t r = 0; r < R; ++r)
      for (int64_t l = 0; l < L; ++l) z(r, l) = l + 1 < L && tables.z_start[(group.begin + r) * (L - 1) + l];
    events_.reserve(R);
    rows_.reserve(R);
    counts_.resize(L, R);
    member_.reserve(R, pass.widest);
  }

  void run() {
    start();
    for (int64_t r = 0; r < R; ++r) next_step(r, 0);
    for (int64_t l; (l = this->next_layer()) >= 0;) together(l);
    if (tables.training)
      for (int64_t l = 1; l < L; ++l) trailing_copies(l);
    finish();
  }

 private:
  using Books<T>::tables, Books<T>::group, Books<T>::layers, Books<T>::L, Books<T>::R, Books<T>::B, Books<T>::current;
  ForwardPass<T>& pass_;
  Member<T>& member_;
  const Share mine_;  // of the group's rows
  CellScratch<T> scratch_;
  std::vector<uint8_t> z_;   // (R, L) the newest boundaries
  std::vector<int64_t> t_;   // (R) the step that each row is at
  std::vector<Event> events_;  // at hand
  std::vector<int64_t> rows_;  // of them
  std::vector<int64_t> counts_;  // (L) events so far

  uint8_t& z(int64_t r, int64_t l) { return z_[r * L + l]; }

  void start() {
    for (int64_t l = 0; l < L; ++l) {
      Layer<T>& layer = layers[l];
      for (int64_t r = mine_.begin; r < mine_.end; ++r) {
        std::memcpy(row(layer.h, r, layer.H), row(pass_.h[l], group.begin + r, layer.H), layer.H * sizeof(T));
        std::memcpy(row(layer.c, r, layer.H), row(pass_.c[l], group.begin + r, layer.H), layer.H * sizeof(T));
        hand_up(layer, r, r);
        detector_dots(l, r);
      }
    }
    for (int64_t l = 0; l < L; ++l)
      for (int64_t r = 0; r < R; ++r) current[l][r] = static_cast<int32_t>(r);
    if (member_.id == 0)
      for (auto& layer : layers) {
        layer.count = R;
        for (int64_t r = 0; r < R; ++r) layer.events[r] = {static_cast<int32_t>(group.begin + r), -1, -1, -1, -1, false, false};
      }
    member_.barrier.wait();
    for (int64_t l = 1; l < L; ++l) top_down(l, 0, R);
  }

  // V h for the layer below, of events that are new.
  void top_down(int64_t l, int64_t first, int64_t count) {
    Layer<T>& layer = layers[l];
    member_.list.clear();
    for (int64_t e = first; e < first + count; ++e) member_.list.add(row(layer.h, e, layer.H), row(layer.v, e, 4 * layer.H_below));
    member_.multiply(pass_.V[l - 1], false);
  }

  // An UPDATE or FLUSH of layer l in all rows that wait for it.
  void together(int64_t l) {
    Layer<T>& layer = layers[l];
    const int64_t first = counts_[l];
    list(l);
    products(l);
    member_.barrier.wait();
    for (size_t m = 0; m < events_.size(); ++m)
      if (mine_.has(rows_[m])) compute(l, first + m, m);
    if (member_.id == 0) std::copy(events_.begin(), events_.end(), layer.events + first);
    counts_[l] += events_.size();
    if (member_.id == 0) layer.count = counts_[l];
    member_.barrier.wait();
    if (l > 0) top_down(l, first, events_.size());
    for (size_t m = 0; m < events_.size(); ++m) {
      const int64_t r = rows_[m];
      const bool fires = detect(l, r, events_[m].z, events_[m].y);
      current[l][r] = static_cast<int32_t>(first + m);
      decide(l, r, fires, true);
      climb(l + 1, r);
    }
  }

  void list(int64_t l) {
    events_.clear();
    rows_.clear();
    this->take_waiting(l, rows_);
    for (int64_t r : rows_) {
      const int32_t above = l + 1 < L ? current[l + 1][r] : -1;
      const int64_t below = l ? current[l - 1][r] : tables.input_row(t_[r], group.begin + r);
      events_.push_back({static_cast<int32_t>(group.begin + r), static_cast<int32_t>(t_[r]), current[l][r], above,
                         static_cast<int32_t>(below), z(r, l) != 0, l == 0 || z(r, l - 1)});
    }
  }

  // U h and W h_below, for the rows that need them.
  void products(int64_t l) {
    Layer<T>& layer = layers[l];
    const int64_t size = 4 * layer.H;
    T *recurrent = member_.recurrent, *bottom_up = member_.bottom_up;
    member_.list.clear();
    for (size_t m = 0; m < events_.size(); ++m) member_.list.add(row(layer.h, events_[m].before, layer.H), row(recurrent, m, size));
    member_.multiply(pass_.U[l], false);
    if (l == 0 && !tables.x) return;
    member_.list.clear();
    const T* below = l ? layers[l - 1].handed : tables.x;
    for (size_t m = 0; m < events_.size(); ++m)
      if (events_[m].y) member_.list.add(row(below, events_[m].below, layer.H_below), row(l ? bottom_up : recurrent, m, size));
    member_.multiply(pass_.W[l], l == 0);
  }

  // The state after event e, the m-th of those at hand.
  void compute(int64_t l, int64_t e, size_t m) {
    Layer<T>& layer = layers[l];
    const Event& event = events_[m];
    const int64_t H = layer.H;
    T* recurrent = row(member_.recurrent, m, 4 * H);
    if (l > 0 && tables.training)
      not_copied(layer, event.before, event.t > layer.events[event.before].t + 1 ? recurrent : nullptr, scratch_);
    T* s = tables.training ? row(layer.gates, e, 4 * H) : scratch_.s;
    const T* bottom_up = nullptr;
    if (l == 0 && !tables.x) bottom_up = row(tables.table, event.below, 4 * H);
    if (l > 0 && event.y) bottom_up = row(member_.bottom_up, m, 4 * H);
    add_up(s, recurrent, bottom_up, event.z ? row(layers[l + 1].v, event.above, 4 * H) : nullptr, 4 * H);
    T rstd;
    cell(layer.w, H, s, layer.rstd ? layer.rstd + e : &rstd, event.z, row(layer.c, event.before, H), row(layer.c, e, H),
         row(layer.h, e, H), scratch_.gates);
    hand_up(layer, e, rows_[m]);
    detector_dots(l, e);
    if (l == 0 && L > 1)
      member_.x_z[rows_[m]] = tables.x ? dot(row(tables.x, event.below, tables.input_size), layer.w.W_z, tables.input_size)
                                       : tables.table_z[event.below];
  }

  // What the layer above gets of event e, which is of row r.
  void hand_up(Layer<T>& layer, int64_t e, int64_t r) {
    if (layer.mask) multiplied(row(layer.h, e, layer.H), row(layer.mask, r, layer.H), row(layer.handed, e, layer.H), layer.H);
  }

  // h of event e as the detectors see it.
  void detector_dots(int64_t l, int64_t e) {
    Layer<T>& layer = layers[l];
    const T* h = row(layer.h, e, layer.H);
    if (l + 1 < L) layer.u_z[e] = dot(h, layer.w.U_z, layer.H);
    if (l + 2 < L) layer.w_z[e] = dot(h, layers[l + 1].w.W_z, layer.H);
    if (l > 0) layer.v_z[e] = dot(h, layers[l - 1].w.V_z, layer.H);
  }

  // Whether the detector of layer l fires, before the layer's event of this step, if it has one, is made current.
  bool detect(int64_t l, int64_t r, bool flush, bool fed) {
    if (l + 1 == L) return false;
    const Layer<T>& layer = layers[l];
    T s_z = layer.u_z[current[l][r]] + *layer.w.b_z;
    if (flush) s_z += layers[l + 1].v_z[current[l + 1][r]];
    if (fed) s_z += l ? layers[l - 1].w_z[current[l - 1][r]] : member_.x_z[r];
    const int64_t at = tables.at(t_[r], group.begin + r, l);
    const bool fires = bound(s_z, tables.slope, tables.uniforms ? tables.uniforms + at : nullptr);
    if (mine_.has(r)) {
      tables.s_z.get()[at] = s_z;
      tables.fires.get()[at] = fires;
    }
    return fires;
  }

  // What layer l did at this step is done: its boundary, and which event is current.
  void decide(int64_t l, int64_t r, bool fires, bool event) {
    const int64_t b = group.begin + r;
    if (mine_.has(r)) pass_.index[l][t_[r] * B + b] = current[l][r];
    if (l + 1 == L) return;
    const int64_t at = tables.at(t_[r], b, l);
    const bool boundary = tables.given ? tables.given[at] != T(0) : fires && (event || !tables.hold);
    z(r, l) = boundary;
    if (mine_.has(r)) {
      tables.z.get()[at] = boundary;
      pass_.z[at] = boundary;
    }
  }

  // Takes a row up through layers that COPY, to the next event in this step or to the next step.
  void climb(int64_t l, int64_t r) {
    for (; l < L; ++l) {
      if (z(r, l) || z(r, l - 1)) return this->wait(l, r);
      decide(l, r, detect(l, r, false, false), false);
    }
    next_step(r, t_[r] + 1);
  }

  void next_step(int64_t r, int64_t t) {
    t_[r] = t;
    if (t < tables.lengths[group.begin + r]) this->wait(0, r);
  }

  // The segments that are still open at the end: their COPY steps have a gradient too.
  void trailing_copies(int64_t l) {
    Layer<T>& layer = layers[l];
    rows_.clear();
    member_.list.clear();
    for (int64_t r = 0; r < R; ++r) {
      const int32_t e = current[l][r];
      if (layer.events[e].t < tables.lengths[group.begin + r] - 1) {
        member_.list.add(row(layer.h, e, layer.H), row(member_.recurrent, rows_.size(), 4 * layer.H));
        rows_.push_back(r);
      } else if (mine_.has(r)) {
        not_copied<T>(layer, e, nullptr, scratch_);
      }
    }
    member_.multiply(pass_.U[l], false);
    member_.barrier.wait();
    for (size_t m = 0; m < rows_.size(); ++m)
      if (mine_.has(rows_[m])) not_copied(layer, current[l][rows_[m]], row(member_.recurrent, m, 4 * layer.H), scratch_);
    member_.barrier.wait();
  }

  // The last state, and what stands at padded steps.
  void finish() {
    for (int64_t r = mine_.begin; r < mine_.end; ++r) {
      const int64_t b = group.begin + r;
      for (int64_t l = 0; l < L; ++l) {
        std::memcpy(row(pass_.c_last[l], b, layers[l].H), row(layers[l].c, current[l][r], layers[l].H), layers[l].H * sizeof(T));
        if (l + 1 < L) pass_.z_last[b * (L - 1) + l] = z(r, l);
        for (int64_t t = tables.lengths[b]; t < tables.steps; ++t) {
          pass_.index[l][t * B + b] = current[l][r];
          if (l + 1 < L) pass_.z[tables.at(t, b, l)] = 0;
        }
      }
    }
  }
};

// The groups' events one behind the other in the caller's memory, layer by layer.
template <typename T>
void join_groups(ForwardPass<T>& pass, const Pool::Lease& lease, int64_t* counts) {
  Tables<T>& tables = pass.tables;
  share_out(lease, tables.layers, [&](int64_t l, int) {
    int64_t total = 0;
    for (Group<T>& group : tables.groups) {
      Layer<T>& layer = group.layers[l];
      layer.offset = total;
      T* h = row(tables.groups[0].layers[l].h, total, layer.H);
      if (h != layer.h) {
        std::memmove(h, layer.h, layer.count * layer.H * sizeof(T));
        if (!layer.mask) layer.handed = h;
        layer.h = h;
        if (layer.not_h) {
          T* not_h = row(tables.groups[0].layers[l].not_h, total, layer.H);
          std::memmove(not_h, layer.not_h, layer.count * layer.H * sizeof(T));
          layer.not_h = not_h;
        }
      }
      for (int64_t t = 0; total && t < tables.steps; ++t)
        for (int64_t b = group.begin; b < group.end; ++b) pass.index[l][t * tables.rows + b] += total;
      total += layer.count;
    }
    counts[l] = total;
  });
}

}  // namespace

template <typename T>
Tables<T>::Tables(const HmrnnCall& call, const HmrnnForward& out)
    : steps(call.steps), rows(call.rows), layers(call.layers), input_size(call.input_size), table_size(call.table_size),
      threads(call.threads), hold(call.hold), training(call.training), bfloat16(call.precision == HMRNN_BFLOAT16), slope(static_cast<T>(call.slope)),
      x(static_cast<const T*>(call.x)), table(static_cast<const T*>(call.table)), table_z(static_cast<const T*>(call.table_z)),
      symbols(call.symbols), given(static_cast<const T*>(call.given)), uniforms(call.uniforms), lengths(rows, steps) {
  if (call.lengths) lengths.assign(call.lengths, call.lengths + rows);
  groups = groups_of<T>(rows, threads, WorkOf(call).largest);
  threads = 0;
  for (const Group<T>& group : groups) threads += group.team;
  const int64_t decisions = steps * rows * (layers - 1);
  s_z = Buffer<T>(decisions);
  fires = Buffer<uint8_t>(decisions);
  z = Buffer<uint8_t>(decisions);
  events = Buffer<Event>(layers * rows * (steps + 1));
  for (int64_t k = 0; k < rows * (layers - 1); ++k) z_start.push_back(static_cast<const T*>(call.z)[k] != T(0));
  for (int64_t l = 0; l < layers; ++l) add_layer(call, out, l);
}

template <typename T>
void Tables<T>::add_layer(const HmrnnCall& call, const HmrnnForward& out, int64_t l) {
  // Room for an event at every step. Pages that are never written take no memory.
  const int64_t N = rows * (steps + 1), H = call.hidden[l], H_below = l ? call.hidden[l - 1] : input_size;
  auto room = [&](bool wanted, int64_t width) {
    memory.emplace_back(wanted ? N * width : 0);
    return memory.back().get();
  };
  Layer<T> all(call.weights[l]);
  all.H = H;
  all.H_below = H_below;
  all.H_above = l + 1 < layers ? call.hidden[l + 1] : 0;
  all.events = events.get() + l * N;
  all.h = static_cast<T*>(out.values[l]);
  all.mask = call.masks && l + 1 < layers ? static_cast<const T*>(call.masks[l]) : nullptr;
  all.handed = all.mask ? room(true, H) : all.h;
  all.c = room(true, H);
  all.gates = room(training, 4 * H);
  all.rstd = room(training && all.w.gain, 1);
  all.v = room(l > 0, 4 * H_below);
  all.not_h = l > 0 && training ? static_cast<T*>(out.tangents[l]) : nullptr;
  all.not_flush = room(l > 0 && training, H);
  all.not_update = room(l > 0 && training, H);
  all.u_z = room(l + 1 < layers, 1);
  all.w_z = room(l + 2 < layers, 1);
  all.v_z = room(l > 0, 1);
  for (Group<T>& group : groups) {
    const int64_t first = group.begin * (steps + 1);
    Layer<T> part = all;
    part.events += first;
    auto shift = [&](T*& table, int64_t width) { table = table ? row(table, first, width) : nullptr; };
    for (T** table : {&part.h, &part.handed, &part.c, &part.not_h, &part.not_flush, &part.not_update}) shift(*table, H);
    for (T** table : {&part.rstd, &part.u_z, &part.w_z, &part.v_z}) shift(*table, 1);
    if (part.mask) part.mask = row(part.mask, group.begin, H);
    shift(part.gates, 4 * H);
    shift(part.v, 4 * H_below);
    group.layers.push_back(part);
  }
}

template <typename T>
void forward(const HmrnnCall& call, HmrnnForward& out, std::unique_ptr<AnyTables>& kept) {
  const auto start = std::chrono::steady_clock::now();
  const Pool::Lease lease(WorkOf(call).all < kWorthThreads ? 1 : call.threads);
  HmrnnCall granted = call;
  granted.threads = lease.threads();  // fewer, if another thread of the program has them
  auto saved = std::make_unique<SavedTables<T>>(granted, out);
  Tables<T>& tables = saved->tables;
  ForwardPass<T> pass(tables, call, out);
  pass.pack(lease);
  std::vector<std::unique_ptr<ForwardWorker<T>>> workers;
  for (Group<T>& group : tables.groups)
    for (int id = 0; id < group.team; ++id) workers.push_back(std::make_unique<ForwardWorker<T>>(pass, group, id));
  lease.run([&](int id) {
    if (id < tables.threads) workers[id]->run();
  });
  join_groups(pass, lease, out.counts);
  out.seconds[0] = seconds_since(start);
  out.seconds[1] = pass.product_seconds();
  if (tables.training) kept = std::move(saved);
}

template struct Tables<float>;
template struct Tables<double>;
template void forward<float>(const HmrnnCall&, HmrnnForward&, std::unique_ptr<AnyTables>&);
template void forward<double>(const HmrnnCall&, HmrnnForward&, std::unique_ptr<AnyTables>&);

}  // namespace hmrnn

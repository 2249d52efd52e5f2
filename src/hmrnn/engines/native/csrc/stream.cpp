#include "stream.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "cell.h"
#include "matvec.h"
#include "partner.h"

namespace hmrnn {

namespace {

constexpr int8_t kUpdate = 0, kCopy = 1, kFlush = 2;  // as in sequence.Operation
constexpr int64_t kWorthPartner = 1 << 18;            // multiply-adds of a product

template <typename T, typename P>
class Stream : public AnyStream {
 public:
  explicit Stream(const HmrnnStream& what)
      : hold_(what.hold), input_size_(what.input_size), table_(static_cast<const T*>(what.table)),
        table_z_(static_cast<const T*>(what.table_z)), L(what.layers), E(what.output_size), S(what.symbols) {
    int64_t widest = 0;
    for (int64_t l = 0; l < L; ++l) {
      const int64_t H = what.hidden[l];
      const HmrnnWeights& w = what.weights[l];
      widest = std::max({widest, H, (what.output_size + 3) / 4, (S + 3) / 4});
      layers_.emplace_back(w, H);
      layers_.back().U = std::make_shared<const Matrix<T, P>>(w.U, 4 * H, H);
      if (w.W) layers_.back().W = std::make_shared<const Matrix<T, P>>(w.W, 4 * H, l ? what.hidden[l - 1] : input_size_);
      if (w.V) layers_.back().V = std::make_shared<const Matrix<T, P>>(w.V, 4 * H, what.hidden[l + 1]);
    }
    scratch_ = std::make_unique<CellScratch<T>>(widest);
    if (E) add_output(what);
  }

  ~Stream() override { Partner::settle(); }

  void step(const HmrnnStep& step) override {
    const Helped helped(*this, step.threads);
    advance(step);
  }

  void set(const void* const* h, const void* const* c, const void* z) override {
    for (int64_t l = 0; l < L; ++l) {
      const int64_t H = layers_[l].H;
      h_[l].assign(static_cast<const T*>(h[l]), static_cast<const T*>(h[l]) + H);
      c_[l].assign(static_cast<const T*>(c[l]), static_cast<const T*>(c[l]) + H);
      embed(l);
    }
    z_.assign(static_cast<const T*>(z), static_cast<const T*>(z) + L - 1);
  }

  void get(void* const* h, void* const* c, void* z) const override {
    for (int64_t l = 0; l < L; ++l) {
      std::copy(h_[l].begin(), h_[l].end(), static_cast<T*>(h[l]));
      std::copy(c_[l].begin(), c_[l].end(), static_cast<T*>(c[l]));
    }
    std::copy(z_.begin(), z_.end(), static_cast<T*>(z));
  }

  void next(int64_t symbol, double slope, int threads, const float* uniforms, float* logits, float* z) override {
    std::vector<const void*> h(L), c(L);
    std::vector<void*> new_h(L), new_c(L);
    std::vector<int8_t> operations(L);
    std::vector<T> new_z(L - 1);
    for (int64_t l = 0; l < L; ++l) {
      h[l] = h_[l].data();
      c[l] = c_[l].data();
      new_h[l] = next_h_[l].data();
      new_c[l] = next_c_[l].data();
    }
    const Helped helped(*this, threads);
    advance({1, threads, slope, nullptr, &symbol, h.data(), c.data(), z_.data(), new_h.data(), new_c.data(), new_z.data(),
          new_z.data(), operations.data(), nullptr, uniforms});
    for (int64_t l = 0; l < L; ++l)
      if (operations[l] != kCopy) {
        h_[l].swap(next_h_[l]);
        c_[l].swap(next_c_[l]);
        embed(l);
      }
    z_ = new_z;
    for (int64_t l = 0; l + 1 < L; ++l) z[l] = static_cast<float>(z_[l]);
    predict(logits);
  }

 private:
  // The partner, while it is this stream's.
  struct Helped {
    Stream& stream;
    const Partner::Lease lease;
    Helped(Stream& stream, int threads) : stream(stream), lease(threads > 1) { stream.partner_ = lease.get(); }
    ~Helped() { stream.partner_ = nullptr; }
  };
  struct StreamLayer {
    int64_t H;
    Weights<T> w;
    std::shared_ptr<const Matrix<T, P>> U, W, V;
    StreamLayer(const HmrnnWeights& weights, int64_t H) : H(H), w(weights) {}
  };
  // A product that is added to a sum.
  struct Term {
    std::shared_ptr<const Matrix<T, P>> matrix;
    Multiplied<T, P> x;
  };

  const bool hold_;
  const int64_t input_size_;
  const T *table_, *table_z_;
  const int64_t L, E, S;
  std::vector<StreamLayer> layers_;
  std::unique_ptr<CellScratch<T>> scratch_;
  Partner* partner_ = nullptr;
  // With a state of its own:
  std::vector<std::vector<T>> h_, c_, next_h_, next_c_;
  std::vector<T> z_;
  std::vector<std::vector<T>> votes_, embedded_;  // of each layer: (L), (E)
  std::vector<const T*> gates_;
  std::vector<std::shared_ptr<const Matrix<T, P>>> embeddings_;
  std::shared_ptr<const Matrix<T, P>> head_;
  const T* head_bias_ = nullptr;

  void add_output(const HmrnnStream& what) {
    for (int64_t l = 0; l < L; ++l) {
      const int64_t H = what.hidden[l];
      for (auto* state : {&h_, &c_, &next_h_, &next_c_}) state->emplace_back(H);
      votes_.emplace_back(L);
      embedded_.emplace_back(E);
      gates_.push_back(reinterpret_cast<const T*>(what.gates[l]));
      embeddings_.push_back(std::make_shared<const Matrix<T, P>>(what.embeddings[l], E, H));
    }
    z_.resize(L - 1);
    head_ = std::make_shared<const Matrix<T, P>>(what.head, S, E);
    head_bias_ = reinterpret_cast<const T*>(what.head_bias);
  }

  void advance(const HmrnnStep& step) {
    for (int64_t b = 0; b < step.rows; ++b) {
      bool y = true;
      for (int64_t l = 0; l < L; ++l) y = layer(step, l, b, y);
    }
    copy_rows(step);
  }

  // Layer l of a row: returns its boundary, y of the layer above.
  bool layer(const HmrnnStep& step, int64_t l, int64_t b, bool y) {
    const StreamLayer& layer = layers_[l];
    const int64_t H = layer.H, at = b * (L - 1) + l;
    const T* h = row(static_cast<const T*>(step.h[l]), b, H);
    const bool detects = l + 1 < L, z = detects && static_cast<const T*>(step.z)[at] != T(0), event = z || y;
    const T* below = nullptr;
    if (l > 0)
      below = row(static_cast<const T*>(step.operations[b * L + l - 1] == kCopy ? step.h[l - 1] : step.new_h[l - 1]), b, layers_[l - 1].H);
    else if (step.x)
      below = row(static_cast<const T*>(step.x), b, input_size_);
    const T* above = detects ? row(static_cast<const T*>(step.h[l + 1]), b, layers_[l + 1].H) : nullptr;
    step.operations[b * L + l] = z ? kFlush : y ? kUpdate : kCopy;
    bool boundary = false;
    if (detects) {
      T s_z = *layer.w.b_z + dot(layer.w.U_z, h, H);
      if (z) s_z += dot(layer.w.V_z, above, layers_[l + 1].H);
      if (y) s_z += below ? dot(layer.w.W_z, below, l ? layers_[l - 1].H : input_size_) : table_z_[step.symbols[b]];
      const bool fires = bound(s_z, step.slope, step.uniforms ? step.uniforms + at : nullptr);
      boundary = step.given ? static_cast<const T*>(step.given)[at] != T(0) : fires && (event || !hold_);
      static_cast<T*>(step.new_z)[at] = static_cast<T*>(step.new_z_too)[at] = boundary;
    }
    if (!event) return boundary;
    std::vector<Term> terms;
    terms.push_back({layer.U, {h, H}});
    if (y && below) terms.push_back({layer.W, {below, layer.W->inputs()}});
    if (z) terms.push_back({layer.V, {above, layer.V->inputs()}});
    T* s = scratch_->s;
    add_products(std::move(terms), 4 * H, s);
    if (!below) add_up(s, s, row(table_, step.symbols[b], 4 * H), static_cast<const T*>(nullptr), 4 * H);
    T rstd;
    cell(layer.w, H, s, &rstd, z, row(static_cast<const T*>(step.c[l]), b, H), row(static_cast<T*>(step.new_c[l]), b, H),
         row(static_cast<T*>(step.new_h[l]), b, H), scratch_->gates);
    return boundary;
  }

  // Rows that COPY in a layer where others do not.
  void copy_rows(const HmrnnStep& step) const {
    for (int64_t l = 0; l < L && step.rows > 1; ++l) {
      const size_t bytes = layers_[l].H * sizeof(T);
      bool copies_all = true;
      for (int64_t b = 0; b < step.rows; ++b) copies_all &= step.operations[b * L + l] == kCopy;
      for (int64_t b = 0; b < step.rows && !copies_all; ++b)
        if (step.operations[b * L + l] == kCopy) {
          std::memcpy(row(static_cast<T*>(step.new_h[l]), b, layers_[l].H), row(static_cast<const T*>(step.h[l]), b, layers_[l].H), bytes);
          std::memcpy(row(static_cast<T*>(step.new_c[l]), b, layers_[l].H), row(static_cast<const T*>(step.c[l]), b, layers_[l].H), bytes);
        }
    }
  }

  // out = the sum of the terms, `units` numbers.
  void add_products(std::vector<Term> terms, int64_t units, T* out) {
    if constexpr (std::is_same_v<T, float>) {
      int64_t inputs = 0;
      for (const Term& term : terms) inputs += term.matrix->inputs();
      if (partner_ && inputs * units >= kWorthPartner && units <= Partner::kMostParts * Partner::kPartSize) {
        const int64_t size = std::max<int64_t>(16, (units + Partner::kMostParts - 1) / Partner::kMostParts);
        const int parts = static_cast<int>((units + size - 1) / size);
        auto work = std::make_shared<const Partner::Work>([terms = std::move(terms), units, size](int part, float* into) {
          const int64_t begin = part * size, end = std::min(units, begin + size);
          for (size_t k = 0; k < terms.size(); ++k) terms[k].matrix->multiply(terms[k].x, begin, end, into, k > 0);
        });
        return partner_->run(std::move(work), parts, size, units, out);
      }
    }
    for (size_t k = 0; k < terms.size(); ++k) terms[k].matrix->multiply(terms[k].x, 0, units, out, k > 0);
  }

  // What the output module wants of layer l's state: computed when the state changes.
  void embed(int64_t l) {
    const int64_t H = layers_[l].H;
    for (int64_t k = 0; k < L; ++k) votes_[l][k] = dot(row(gates_[l], k, H), h_[l].data(), H);
    add_products({{embeddings_[l], {h_[l].data(), H}}}, E, embedded_[l].data());
  }

  void predict(float* logits) {
    T* h_e = scratch_->s;
    std::fill_n(h_e, E, T(0));
    for (int64_t l = 0; l < L; ++l) {
      T vote = 0;
      for (int64_t k = 0; k < L; ++k) vote += votes_[k][l];
      axpy(sigmoid(vote), embedded_[l].data(), h_e, E);
    }
    for (int64_t j = 0; j < E; ++j) h_e[j] = h_e[j] < 0 ? T(0) : h_e[j];
    T* out = scratch_->gates;
    head_->multiply({h_e, E}, 0, S, out, false);
    for (int64_t k = 0; k < S; ++k) logits[k] = static_cast<float>(out[k] + head_bias_[k]);
  }
};

}  // namespace

std::unique_ptr<AnyStream> make_stream(const HmrnnStream& what) {
  if (what.precision == HMRNN_FLOAT64) return std::make_unique<Stream<double, double>>(what);
  if (what.precision == HMRNN_BFLOAT16) return std::make_unique<Stream<float, Bf16>>(what);
  return std::make_unique<Stream<float, float>>(what);
}

}  // namespace hmrnn

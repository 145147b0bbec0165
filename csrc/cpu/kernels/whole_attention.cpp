// Attention of whole sequences of any lengths, in which a token sees all others or those near it, with an
// online softmax.
//
// A row (one query head of one token) walks its sequence in chunks of kChunk positions, from the first that
// it sees. Positions it must not see take part in no operation of that row. So its bits depend on its
// sequence alone, never on the other sequences of the call, or on threads. Weights are rounded to the type of
// the values before they multiply them, as in paged attention; dot products and all sums are float32.
#include <cstdlib>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/whole_tile.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of one task. Its KV head is packed once for them, which costs as much as about two rows.
inline constexpr int64_t kTaskRows = 480;

struct Task {
  int64_t sequence, kv_head, first_row, rows;
};

template <typename T>
class WholeAttention {
 public:
  explicit WholeAttention(const WholeAttentionParams& params)
      : p(params), group(params.heads / params.kv_heads) {}

  void run() const {
    int64_t num_tasks = 0, work = 0;
    for (int64_t i = 0; i < p.sequences; ++i) {
      num_tasks += p.kv_heads * ((length_of(i) * group + kTaskRows - 1) / kTaskRows);
      work += p.heads * length_of(i) * length_of(i) * p.head_dim;
    }
    if (num_tasks == 0) return;
    auto* tasks = static_cast<Task*>(std::malloc(static_cast<size_t>(num_tasks) * sizeof(Task)));
    list_tasks(tasks);
    parallel_for(num_tasks, work,
                 [&](int64_t begin, int64_t end) { run_tasks_of_part(tasks + begin, end - begin); });
    std::free(tasks);
  }

 private:
  int64_t length_of(int64_t i) const { return p.cu_seqlens[i + 1] - p.cu_seqlens[i]; }

  void list_tasks(Task* tasks) const {
    for (int64_t i = 0; i < p.sequences; ++i) {
      const int64_t rows = length_of(i) * group;
      for (int64_t head = 0; head < p.kv_heads; ++head) {
        for (int64_t first = 0; first < rows; first += kTaskRows)
          *tasks++ = {i, head, first, min_of(kTaskRows, rows - first)};
      }
    }
  }

  void run_tasks_of_part(const Task* tasks, int64_t count) const {
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) longest = max_of(longest, length_of(tasks[i].sequence));
    const int64_t bytes = PackedHead<T>::elements(longest, p.head_dim) * static_cast<int64_t>(sizeof(T));
    auto* memory = static_cast<T*>(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes, 64))));
    for (int64_t i = 0; i < count; ++i) {
      const Task& task = tasks[i];
      const PackedHead<T> packed(memory, length_of(task.sequence), p.head_dim);
      // Tasks of one head follow each other.
      if (i == 0 || task.first_row == 0)
        packed.pack(rows_of(p.k, task.sequence, task.kv_head), rows_of(p.v, task.sequence, task.kv_head));
      WholeTile<T> tile(p, task.sequence, task.kv_head);
      for (int64_t row = 0; row < task.rows; row += kWholeRows<T>)
        tile.run(packed, task.first_row + row, min_of(kWholeRows<T>, task.rows - row));
    }
    std::free(memory);
  }

  TokenRows rows_of(const HeadTensor& x, int64_t sequence, int64_t head) const {
    const T* first =
        static_cast<const T*>(x.data) + p.cu_seqlens[sequence] * x.token_stride + head * x.head_stride;
    return {reinterpret_cast<const char*>(first), x.token_stride * static_cast<int64_t>(sizeof(T))};
  }

  const WholeAttentionParams& p;
  const int64_t group;
};

}  // namespace

void whole_attention(const WholeAttentionParams& params) {
  if (params.dtype == DType::kBFloat16) {
    with_bfloat16([&]<typename T>(T) { WholeAttention<T>(params).run(); });
  } else {
    WholeAttention<float>(params).run();
  }
}

}  // namespace splitserve::SPLITSERVE_ISA

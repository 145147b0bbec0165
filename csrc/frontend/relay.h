// Streams of plain text whose tokens go from the engine's message to the client's socket without Python.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/json_text.h"
#include "frontend/piece_table.h"

namespace splitserve::frontend {

// A histogram that Python owns; counts has one bucket more than there are upper bounds.
struct Histogram {
  const double* bounds;
  int64_t num_bounds;
  int64_t* counts;
  double* sum;

  void observe(double value, int64_t weight) const;
};

// A stream as Python hands it over. Plain data, also known to frontend/_native.py: keep both in step.
struct StreamSpec {
  int64_t handle;
  Histogram latency;
  PieceTable* pieces;
  const char* frame;         // what goes before the text, then what goes behind it
  const int32_t* token_ids;  // those that have come but are not written yet
  double last_token_s;
  int32_t prefix_size;
  int32_t suffix_size;
  int32_t num_token_ids;
  int32_t num_taken;  // tokens of the sequence before these
  int32_t fd;
  int32_t replace_each_byte;
  HeldBytes held;
};

// What a stream has become when Python takes it back. Plain data, also known to frontend/_native.py.
struct StreamOutcome {
  const int32_t* token_ids;  // all that came meanwhile, with those of the spec
  const char* unsent;        // bytes that go to the connection before anything else
  double last_token_s;
  double last_write_s;  // 0 if nothing was written
  int64_t num_body_bytes;
  int32_t num_token_ids;
  int32_t num_taken;  // of token_ids: those whose text was made
  int32_t num_unsent;
  HeldBytes held;
};

// What the last calls found. Plain data, also known to frontend/_native.py.
struct RelayReport {
  const int32_t* left_rows;  // of add(): rows of no stream here, or not the next token of theirs
  const int64_t* blocked;    // of flush(): handles of streams whose socket did not take all
  int32_t num_left_rows;
  int32_t num_blocked;
};

class Relay {
 public:
  // Takes a stream over; its handle has none yet.
  void attach(const StreamSpec& spec);

  // Takes one row per token of a message: columns of int64 handles, int32 ids and int32 places in the
  // sequence.
  void add(const char* handles, const char* token_ids, const char* indices, int32_t num_rows);

  // Writes what is new of at most max_streams streams, those first that wait longest; returns how many still
  // wait.
  size_t flush(double now_s, size_t max_streams);

  const RelayReport& report() const { return report_; }

  // Gives a stream back; its outcome is valid until the next call. Null if there is no such stream.
  const StreamOutcome* detach(int64_t handle);

  // Time of the last write to a stream, 0 if there was none or there is no such stream.
  double last_write_s(int64_t handle) const;

 private:
  static constexpr int64_t kNotWaiting = -1;

  struct Stream {
    explicit Stream(const StreamSpec& spec);

    StreamSpec spec;
    std::string frame;
    std::vector<int32_t> token_ids;
    size_t num_taken = 0;
    int64_t place = kNotWaiting;  // in the queue, counted from its first entry ever
    double last_write_s = 0;
    int64_t num_body_bytes = 0;
    std::string unsent;
  };

  void wait_for_flush(Stream& stream);
  void prefetch_next() const;
  bool write_new(Stream& stream, double now_s);
  bool send(Stream& stream, size_t body_size);

  std::unordered_map<int64_t, Stream> streams_;
  // Streams with something new, each once, in the order of its coming; one that was taken back meanwhile is
  // null.
  std::deque<Stream*> waiting_;
  int64_t num_flushed_ = 0;
  std::vector<int32_t> left_rows_;
  std::vector<int64_t> blocked_;
  RelayReport report_{};
  // Kept from call to call for their memory.
  std::string bytes_;
  std::string chunk_;
  std::unordered_map<int64_t, Stream>::node_type detached_;
  StreamOutcome outcome_{};
};

}  // namespace splitserve::frontend

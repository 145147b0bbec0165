#include "frontend/relay.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace splitserve::frontend {
namespace {

// Room for the size of a chunk before its data: at most 8 hexadecimal digits and a line's end.
constexpr size_t kSizeRoom = 10;
constexpr uintptr_t kCacheLine = 64;

template <typename T>
T load(const char* column, int32_t row) {
  T value;
  std::memcpy(&value, column + sizeof(T) * static_cast<size_t>(row), sizeof(T));
  return value;
}

void prefetch_lines(const void* data, size_t size) {
  const auto first = reinterpret_cast<uintptr_t>(data) / kCacheLine * kCacheLine;
  const auto end = reinterpret_cast<uintptr_t>(data) + size;
  for (uintptr_t line = first; line < end; line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), 1);
  }
}

// Writes the size of a chunk so that it ends at `end`; returns where it begins (RFC 9112, section 7.1).
size_t put_chunk_size(std::string& chunk, size_t end, size_t size) {
  chunk[--end] = '\n';
  chunk[--end] = '\r';
  for (; size; size >>= 4) chunk[--end] = "0123456789abcdef"[size & 15];
  return end;
}

}  // namespace

void Histogram::observe(double value, int64_t weight) const {
  counts[std::lower_bound(bounds, bounds + num_bounds, value) - bounds] += weight;
  *sum += value * static_cast<double>(weight);
}

Relay::Stream::Stream(const StreamSpec& spec)
    : spec(spec),
      frame(spec.frame, static_cast<size_t>(spec.prefix_size + spec.suffix_size)),
      token_ids(spec.token_ids, spec.token_ids + spec.num_token_ids) {}

void Relay::attach(const StreamSpec& spec) {
  Stream& stream = streams_.try_emplace(spec.handle, spec).first->second;
  if (!stream.token_ids.empty()) wait_for_flush(stream);
}

void Relay::add(const char* handles, const char* token_ids, const char* indices, int32_t num_rows) {
  left_rows_.clear();
  for (int32_t row = 0; row < num_rows; ++row) {
    const auto found = streams_.find(load<int64_t>(handles, row));
    if (found == streams_.end()) {
      left_rows_.push_back(row);
      continue;
    }
    Stream& stream = found->second;
    const int64_t next = stream.spec.num_taken + static_cast<int64_t>(stream.token_ids.size());
    if (load<int32_t>(indices, row) != next) {
      left_rows_.push_back(row);
      continue;
    }
    stream.token_ids.push_back(load<int32_t>(token_ids, row));
    wait_for_flush(stream);
  }
  report_.left_rows = left_rows_.data();
  report_.num_left_rows = static_cast<int32_t>(left_rows_.size());
}

size_t Relay::flush(double now_s, size_t max_streams) {
  blocked_.clear();
  for (size_t num = std::min(waiting_.size(), max_streams); num; --num) {
    Stream* stream = waiting_.front();
    waiting_.pop_front();
    ++num_flushed_;
    prefetch_next();
    if (!stream) continue;
    stream->place = kNotWaiting;
    if (!write_new(*stream, now_s)) blocked_.push_back(stream->spec.handle);
  }
  report_.blocked = blocked_.data();
  report_.num_blocked = static_cast<int32_t>(blocked_.size());
  return waiting_.size();
}

const StreamOutcome* Relay::detach(int64_t handle) {
  detached_ = streams_.extract(handle);
  if (detached_.empty()) return nullptr;
  const Stream& stream = detached_.mapped();
  if (stream.place != kNotWaiting) waiting_[static_cast<size_t>(stream.place - num_flushed_)] = nullptr;
  outcome_.token_ids = stream.token_ids.data();
  outcome_.num_token_ids = static_cast<int32_t>(stream.token_ids.size());
  outcome_.num_taken = static_cast<int32_t>(stream.num_taken);
  outcome_.unsent = stream.unsent.data();
  outcome_.num_unsent = static_cast<int32_t>(stream.unsent.size());
  outcome_.last_token_s = stream.spec.last_token_s;
  outcome_.last_write_s = stream.last_write_s;
  outcome_.num_body_bytes = stream.num_body_bytes;
  outcome_.held = stream.spec.held;
  return &outcome_;
}

double Relay::last_write_s(int64_t handle) const {
  const auto found = streams_.find(handle);
  return found == streams_.end() ? 0.0 : found->second.last_write_s;
}

void Relay::wait_for_flush(Stream& stream) {
  if (stream.place != kNotWaiting) return;
  stream.place = num_flushed_ + static_cast<int64_t>(waiting_.size());
  waiting_.push_back(&stream);
}

// Asks for the memory of the next two streams while one is written: between two tokens of a stream thousands
// of others may have pushed it out of the caches, and a send takes far longer than a line takes to come. Two
// steps, as where a stream's buffers are stands in the stream.
void Relay::prefetch_next() const {
  if (waiting_.size() > 1 && waiting_[1]) prefetch_lines(waiting_[1], sizeof(Stream));
  if (waiting_.empty() || !waiting_[0]) return;
  const Stream& next = *waiting_[0];
  prefetch_lines(next.frame.data(), next.frame.size());
  prefetch_lines(next.token_ids.data() + next.num_taken, sizeof(int32_t));
}

// Makes one event of all that is new; false if the socket did not take the whole of it.
bool Relay::write_new(Stream& stream, double now_s) {
  StreamSpec& spec = stream.spec;
  const auto num_new = static_cast<int64_t>(stream.token_ids.size() - stream.num_taken);
  spec.latency.observe((now_s - spec.last_token_s) / static_cast<double>(num_new), num_new);
  spec.last_token_s = now_s;
  bytes_.clear();
  for (; stream.num_taken < stream.token_ids.size(); ++stream.num_taken) {
    spec.pieces->append_to(bytes_, stream.token_ids[stream.num_taken]);
  }
  const auto prefix_size = static_cast<size_t>(spec.prefix_size);
  chunk_.resize(kSizeRoom);
  chunk_.append(stream.frame, 0, prefix_size);
  chunk_ += '"';
  if (!append_json_text(chunk_, spec.held, bytes_, spec.replace_each_byte != 0)) return true;
  chunk_ += '"';
  chunk_.append(stream.frame, prefix_size);
  const size_t body_size = chunk_.size() - kSizeRoom;
  chunk_ += "\r\n";
  stream.num_body_bytes += static_cast<int64_t>(body_size);
  stream.last_write_s = now_s;
  return send(stream, body_size);
}

bool Relay::send(Stream& stream, size_t body_size) {
  const size_t begin = put_chunk_size(chunk_, kSizeRoom, body_size);
  const size_t size = chunk_.size() - begin;
  const ssize_t sent = ::send(stream.spec.fd, chunk_.data() + begin, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(size)) return true;
  // A broken connection is the transport's to find: it gets the same bytes and meets the same error.
  stream.unsent.assign(chunk_, begin + static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  return false;
}

}  // namespace splitserve::frontend

// The C functions of the library, called through ctypes; frontend/_native.py declares them.
//
// All calls hold Python's lock, so nothing here needs one. Nothing throws but for want of memory, which ends
// the process.
#include "frontend/relay.h"

using splitserve::frontend::PieceTable;
using splitserve::frontend::Relay;
using splitserve::frontend::RelayReport;
using splitserve::frontend::StreamOutcome;
using splitserve::frontend::StreamSpec;

#define SPLITSERVE_EXPORT extern "C" __attribute__((visibility("default")))

SPLITSERVE_EXPORT PieceTable* splitserve_pieces_new(int32_t limit, PieceTable::Fill fill) noexcept {
  return new PieceTable(limit, fill);
}

SPLITSERVE_EXPORT void splitserve_pieces_set(PieceTable* pieces, int32_t token_id, const char* data,
                                             int32_t size) noexcept {
  pieces->set(token_id, data, size);
}

SPLITSERVE_EXPORT void splitserve_pieces_delete(PieceTable* pieces) noexcept { delete pieces; }

SPLITSERVE_EXPORT Relay* splitserve_relay_new() noexcept { return new Relay; }

SPLITSERVE_EXPORT void splitserve_relay_delete(Relay* relay) noexcept { delete relay; }

SPLITSERVE_EXPORT void splitserve_relay_attach(Relay* relay, const StreamSpec* spec) noexcept {
  relay->attach(*spec);
}

SPLITSERVE_EXPORT const RelayReport* splitserve_relay_report(const Relay* relay) noexcept {
  return &relay->report();
}

// Returns how many rows are left, see the report.
SPLITSERVE_EXPORT int32_t splitserve_relay_add(Relay* relay, const char* handles, const char* token_ids,
                                               const char* indices, int32_t num_rows) noexcept {
  relay->add(handles, token_ids, indices, num_rows);
  return relay->report().num_left_rows;
}

// Returns how many streams still wait; the report has those that are blocked.
SPLITSERVE_EXPORT int32_t splitserve_relay_flush(Relay* relay, double now_s, int32_t max_streams) noexcept {
  return static_cast<int32_t>(relay->flush(now_s, static_cast<size_t>(max_streams)));
}

SPLITSERVE_EXPORT const StreamOutcome* splitserve_relay_detach(Relay* relay, int64_t handle) noexcept {
  return relay->detach(handle);
}

SPLITSERVE_EXPORT double splitserve_relay_last_write_s(const Relay* relay, int64_t handle) noexcept {
  return relay->last_write_s(handle);
}

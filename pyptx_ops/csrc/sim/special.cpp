// Special registers, and where a CTA stands in its grid.
#include "machine.h"
#include "registers.h"

namespace sim {
namespace {

constexpr u32 MULTIPROCESSORS = 132, WARP_SLOTS = 64, RESERVED_SHARED = 1024;

constexpr int axis(Special what, Special first) { return static_cast<int>(what) - static_cast<int>(first); }

}  // namespace

// The coordinates of a CTA by the number of its cluster in the grid and its rank in that, x fastest in both.
void Machine::place_cta(u32 cluster, u32 rank, u32* id) const {
  for (int d = 0; d < 3; ++d) {
    u32 across = launch_.grid[d] / program_.cluster_shape[d];
    id[d] = cluster % across * program_.cluster_shape[d] + rank % program_.cluster_shape[d];
    cluster /= across;
    rank /= program_.cluster_shape[d];
  }
}

u64 Machine::special(const Preset& preset, const Cta& cta, const Warp& warp, u32 lane) const {
  const u32 *block = program_.block, *shape = program_.cluster_shape;
  u32 thread = static_cast<u32>(warp.index) * LANES + lane, bit = 1u << lane;
  const u32 tid[3] = {thread % block[0], thread / block[0] % block[1], thread / (block[0] * block[1])};
  Special what = preset.what;
  switch (what) {
    case Special::tid_x:
    case Special::tid_y:
    case Special::tid_z: return tid[axis(what, Special::tid_x)];
    case Special::ntid_x:
    case Special::ntid_y:
    case Special::ntid_z: return block[axis(what, Special::ntid_x)];
    case Special::ctaid_x:
    case Special::ctaid_y:
    case Special::ctaid_z: return cta.id[axis(what, Special::ctaid_x)];
    case Special::nctaid_x:
    case Special::nctaid_y:
    case Special::nctaid_z: return launch_.grid[axis(what, Special::nctaid_x)];
    case Special::clusterid_x:
    case Special::clusterid_y:
    case Special::clusterid_z: {
      int d = axis(what, Special::clusterid_x);
      return cta.id[d] / shape[d];
    }
    case Special::nclusterid_x:
    case Special::nclusterid_y:
    case Special::nclusterid_z: {
      int d = axis(what, Special::nclusterid_x);
      return launch_.grid[d] / shape[d];
    }
    case Special::cluster_ctaid_x:
    case Special::cluster_ctaid_y:
    case Special::cluster_ctaid_z: {
      int d = axis(what, Special::cluster_ctaid_x);
      return cta.id[d] % shape[d];
    }
    case Special::cluster_nctaid_x:
    case Special::cluster_nctaid_y:
    case Special::cluster_nctaid_z: return shape[axis(what, Special::cluster_nctaid_x)];
    case Special::cluster_ctarank: return cta.rank;
    case Special::cluster_nctarank: return program_.cluster;
    case Special::is_explicit_cluster: return program_.cluster > 1;
    case Special::laneid: return lane;
    case Special::warpid: return static_cast<u32>(warp.index);
    case Special::nwarpid: return WARP_SLOTS;
    case Special::smid: return cta.id[0] % MULTIPROCESSORS;
    case Special::nsmid: return MULTIPROCESSORS;
    case Special::lanemask_eq: return bit;
    case Special::lanemask_lt: return bit - 1;
    case Special::lanemask_le: return bit | (bit - 1);
    case Special::lanemask_gt: return ~(bit | (bit - 1));
    case Special::lanemask_ge: return ~(bit - 1);
    case Special::total_smem_size: return program_.shared_bytes;
    case Special::dynamic_smem_size: return program_.dynamic_bytes;
    case Special::aggr_smem_size: return program_.shared_bytes + RESERVED_SHARED;
    case Special::reserved_smem_offset_end:
    case Special::reserved_smem_offset_cap: return RESERVED_SHARED;
    case Special::shared_symbol: return cta.rank * WINDOW + SHARED_BASE + static_cast<u64>(preset.value);
    case Special::memory_symbol: return program_.memory_base() + static_cast<u64>(preset.value);
    default: return 0;  // gridid, reserved_smem_offset_begin
  }
}

// Logical time: what the launch has executed. A nanosecond is an instruction.
void Machine::read_clock(Warp& warp, const Ins& ins, u32 mask) {
  u64 lanes[LANES];
  for (u64& lane : lanes) lane = ins.mode == Word::hi ? executed >> 32 : executed;
  write<u64>(warp, ins.arg(0), lanes, mask);
}

}  // namespace sim

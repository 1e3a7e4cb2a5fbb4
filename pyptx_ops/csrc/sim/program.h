// A decoded kernel: what the Python loader made of the PTX, as the machine executes it.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sim {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

constexpr int LANES = 32;
constexpr u32 ALL = 0xFFFFFFFFu;

// clang-format off
// The meanings of instruction rows that the machine has; the loader refuses every other by name and line.
// What a lane computes by itself; lanes.h finds the function of each form.
#define SIM_ARITHMETIC(X) \
  X(add, "add") X(sub, "sub") X(mul_lo, "mul.lo") X(mul_hi, "mul.hi") X(mul_wide, "mul.wide") X(mul24, "mul24") \
  X(mad_lo, "mad.lo") X(mad_hi, "mad.hi") X(mad_wide, "mad.wide") X(mad24, "mad24") X(sad, "sad") \
  X(add_cc, "add.cc") X(sub_cc, "sub.cc") X(addc, "addc") X(subc, "subc") X(madc, "madc") \
  X(dp4a, "dp4a") X(dp2a, "dp2a") X(div, "div") X(rem, "rem") X(min, "min") X(max, "max") X(abs, "abs") X(neg, "neg") \
  X(and_, "and") X(or_, "or") X(xor_, "xor") X(not_, "not") X(cnot, "cnot") X(shl, "shl") X(shr, "shr") X(shf, "shf") \
  X(bfe, "bfe") X(bfi, "bfi") X(brev, "brev") X(clz, "clz") X(popc, "popc") X(bfind, "bfind") X(fns, "fns") \
  X(bmsk, "bmsk") X(szext, "szext") X(prmt, "prmt") X(lop3, "lop3") X(lop3_dual, "lop3.dual") \
  X(selp, "selp") X(slct, "slct") X(setp, "setp") X(setp_dual, "setp.dual") X(set, "set") \
  X(mov, "mov") X(mov_pack, "mov.pack") X(mov_unpack, "mov.unpack") \
  X(add_float, "add.float") X(sub_float, "sub.float") X(mul_float, "mul.float") X(fma, "fma") X(fma_oob, "fma.oob") \
  X(min_float, "min.float") X(max_float, "max.float") X(abs_float, "abs.float") X(neg_float, "neg.float") \
  X(copysign, "copysign") X(testp, "testp") X(div_float, "div.float") X(rcp, "rcp") X(sqrt, "sqrt") \
  X(div_approx, "div.approx") X(div_full, "div.full") X(rcp_approx, "rcp.approx") X(sqrt_approx, "sqrt.approx") \
  X(rsqrt_approx, "rsqrt.approx") X(ex2_approx, "ex2.approx") X(lg2_approx, "lg2.approx") X(sin_approx, "sin.approx") \
  X(cos_approx, "cos.approx") X(tanh_approx, "tanh.approx") \
  X(cvt_int, "cvt.int") X(cvt_float_from_int, "cvt.float_from_int") X(cvt_int_from_float, "cvt.int_from_float") \
  X(cvt_float, "cvt.float") X(cvt_round, "cvt.round") X(cvt_tf32, "cvt.tf32") X(cvt_pack, "cvt.pack") \
  X(cvt_pack_int, "cvt.pack.int")

#define SIM_OPERATIONS(X) \
  SIM_ARITHMETIC(X) \
  X(ld, "ld") X(st, "st") X(cvta, "cvta") X(cvta_to, "cvta.to") X(mapa, "mapa") X(getctarank, "getctarank") \
  X(prefetch_tensormap, "prefetch.tensormap") X(atom, "atom") X(red, "red") \
  X(bra, "bra") X(ret, "ret") X(exit, "exit") X(trap, "trap") X(nanosleep, "nanosleep") \
  X(griddepcontrol, "griddepcontrol") X(setmaxnreg, "setmaxnreg") \
  X(elect, "elect") X(shfl, "shfl") X(vote, "vote") X(vote_ballot, "vote.ballot") X(activemask, "activemask") \
  X(redux, "redux") X(match_any, "match.any") X(match_all, "match.all") \
  X(bar_sync, "bar.sync") X(bar_arrive, "bar.arrive") X(bar_warp_sync, "bar.warp.sync") \
  X(cluster_arrive, "barrier.cluster.arrive") X(cluster_wait, "barrier.cluster.wait") \
  X(membar, "membar") X(fence, "fence") X(fence_mbarrier_init, "fence.mbarrier_init") \
  X(fence_proxy_async, "fence.proxy.async") \
  X(mbarrier_init, "mbarrier.init") X(mbarrier_inval, "mbarrier.inval") X(mbarrier_arrive, "mbarrier.arrive") \
  X(mbarrier_arrive_tx, "mbarrier.arrive.expect_tx") X(mbarrier_expect_tx, "mbarrier.expect_tx") \
  X(mbarrier_complete_tx, "mbarrier.complete_tx") X(mbarrier_test_wait, "mbarrier.test_wait.parity") \
  X(mbarrier_try_wait, "mbarrier.try_wait.parity") \
  X(tma_load, "tma.load") X(tma_store, "tma.store") X(tma_prefetch, "tma.prefetch") \
  X(bulk_load, "bulk.load") X(bulk_store, "bulk.store") X(bulk_commit, "bulk.commit_group") \
  X(bulk_exchange, "bulk.shared") X(element_copy, "cp.async") X(element_commit, "cp.async.commit_group") \
  X(element_wait, "cp.async.wait_group") X(element_wait_all, "cp.async.wait_all") \
  X(element_arrive, "cp.async.mbarrier.arrive") X(st_async, "st.async") X(red_async, "red.async") \
  X(tensormap_replace, "tensormap.replace") X(tensormap_publish, "tensormap.cp_fenceproxy") \
  X(tensormap_release, "fence.proxy.tensormap.release") X(tensormap_acquire, "fence.proxy.tensormap.acquire") \
  X(bulk_wait, "bulk.wait_group") \
  X(wgmma, "wgmma") X(wgmma_fence, "wgmma.fence") X(wgmma_commit, "wgmma.commit_group") \
  X(wgmma_wait, "wgmma.wait_group") \
  X(ldmatrix, "ldmatrix") X(stmatrix, "stmatrix") X(movmatrix, "movmatrix") X(mma_sync, "mma.sync") \
  X(mov_wide, "mov.b128") X(isspacep, "isspacep") X(hint, "hint") X(createpolicy, "createpolicy") \
  X(discard, "discard") X(clock, "clock")

#define SIM_TYPES(X) \
  X(none) X(pred) X(b8) X(u8) X(s8) X(b16) X(u16) X(s16) X(b32) X(u32) X(s32) X(b64) X(u64) X(s64) \
  X(f16) X(bf16) X(f32) X(f64) X(f16x2) X(bf16x2) \
  X(u16x2) X(s16x2) X(e4m3x2) X(e5m2x2) \
  X(tf32) X(e4m3) X(e5m2) X(s4) X(u4) X(b1)

// Modifiers by their spelling.
#define SIM_WORDS(X) \
  X(none, "") X(eq, "eq") X(ne, "ne") X(lt, "lt") X(le, "le") X(gt, "gt") X(ge, "ge") X(lo, "lo") X(ls, "ls") \
  X(hi, "hi") X(hs, "hs") X(equ, "equ") X(neu, "neu") X(ltu, "ltu") X(leu, "leu") X(gtu, "gtu") X(geu, "geu") \
  X(num, "num") X(nan, "nan") \
  X(and_, "and") X(or_, "or") X(xor_, "xor") \
  X(rn, "rn") X(rz, "rz") X(rm, "rm") X(rp, "rp") X(rna, "rna") X(rni, "rni") X(rzi, "rzi") X(rmi, "rmi") X(rpi, "rpi") \
  X(global, "global") X(shared, "shared") X(shared_cta, "shared::cta") X(shared_cluster, "shared::cluster") \
  X(param, "param") X(const_, "const") X(local, "local") X(cas, "cas") \
  X(global_address, "global_address") X(rank, "rank") X(box_dim, "box_dim") X(global_dim, "global_dim") \
  X(element_stride, "element_stride") X(global_stride, "global_stride") X(elemtype, "elemtype") \
  X(interleave_layout, "interleave_layout") X(swizzle_mode, "swizzle_mode") X(fill_mode, "fill_mode") \
  X(l, "l") X(r, "r") X(clamp, "clamp") X(wrap, "wrap") \
  X(f4e, "f4e") X(b4e, "b4e") X(rc8, "rc8") X(ecl, "ecl") X(ecr, "ecr") X(rc16, "rc16") \
  X(finite, "finite") X(infinite, "infinite") X(number, "number") X(notanumber, "notanumber") X(normal, "normal") \
  X(subnormal, "subnormal") \
  X(up, "up") X(down, "down") X(bfly, "bfly") X(idx, "idx") X(all, "all") X(any, "any") X(uni, "uni") \
  X(inc, "inc") X(dec, "dec") X(add, "add") X(min, "min") X(max, "max") X(exch, "exch")
// clang-format on

enum class Op : int {
#define X(name, text) name,
  SIM_OPERATIONS(X)
#undef X
};
enum class Type : int {
#define X(name) name,
  SIM_TYPES(X)
#undef X
};
enum class Word : int {
#define X(name, text) name,
  SIM_WORDS(X)
#undef X
};

enum Flag : u32 {
  FTZ = 1,
  SAT = 2,
  NAN_WINS = 4,
  RELU = 8,
  TRANS = 16,
  READ = 32,
  SATFINITE = 64,
  MULTICAST = 128,
  RELAXED = 256,
  XORSIGN_ABS = 512,
  SHIFTAMT = 1024,
  CARRY = 2048,
  NOINC = 4096,
  IM2COL = 8192
};

// What an access or a fence orders, and in its upper bits for whom: 1 the CTA, 2 the cluster, 3 the device.
enum Order : u32 { STRONG = 1, ACQUIRE = 2, RELEASE = 4, SCOPE_SHIFT = 4 };

constexpr int bytes_of(Type t) {
  switch (t) {
    case Type::b8:
    case Type::u8:
    case Type::s8: return 1;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16:
    case Type::e4m3x2:
    case Type::e5m2x2: return 2;
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64: return 8;
    default: return 4;
  }
}

constexpr int bits_of(Type t) {  // of an element of a matrix
  switch (t) {
    case Type::e4m3:
    case Type::e5m2: return 8;
    case Type::s4:
    case Type::u4: return 4;
    case Type::b1: return 1;
    default: return 8 * bytes_of(t);
  }
}

constexpr bool is_signed(Type t) { return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64; }

constexpr bool is_shared(Word space) {
  return space == Word::shared || space == Word::shared_cta || space == Word::shared_cluster;
}

// One operand: a register, or a literal broadcast to all lanes. `offset` belongs to addresses.
struct Operand {
  enum Kind : int { none, reg, literal } kind = none;
  int slot = -1;
  bool wide = false;  // 64 bits a lane
  bool negated = false;
  s64 value = 0, offset = 0;
  std::shared_ptr<std::vector<u64>> lanes64;
  std::shared_ptr<std::vector<u32>> lanes32;
};

// How an operand's 32 lanes lie in memory: words of 32 bits, of 64, or one bit a lane. A signed word stands for its
// sign-extended value where the register is wider.
enum class Kind : u8 { word, signed_word, wide, pred };

struct Ins;

// The operands of one instruction as its lane function gets them.
struct Lanes {
  const void* in[6];
  void* out[4];
};

// What an arithmetic instruction computes: a function over all lanes, and how it wants its operands.
struct Form {
  void (*run)(const Ins&, const Lanes&) = nullptr;
  int ins = 0, outs = 0;
  Kind in[6] = {}, out[4] = {};
};

// An operand of such an instruction, ready to be found: a literal's lanes, or a register.
struct Place {
  const void* literal = nullptr;
  int slot = -1;
  u32 offset = 0;  // of the register in a warp's file
  bool fits = true;  // its lanes lie as the form wants them
  bool negated = false;
};

struct Ins {
  Op op{};
  Type type{}, src{}, src_b{};
  Word rnd{}, cmp{}, join{}, space{}, mode{};
  u32 flags = 0;
  int n = 0;  // a number of the opcode: the N of a matrix shape, the target of a branch
  int m = 0, k = 0;
  u32 order = 0;
  int line = 0;
  int guard = -1;
  bool guard_not = false;
  std::vector<Operand> operands;
  std::vector<int> first, count;  // arguments are runs of operands
  Form form;
  Place in[6], out[4];

  int args() const { return static_cast<int>(first.size()); }
  const Operand& arg(int a, int element = 0) const { return operands[first[a] + element]; }
  int size(int a) const { return count[a]; }
  u32 scope() const { return order >> SCOPE_SHIFT; }
};

struct Slot {
  u32 offset;  // of 32 lanes in a warp's register file
  bool wide, pred;
  std::string name;
};

// Operands of wgmma by the loader's order.
enum : int { WGMMA_D, WGMMA_A, WGMMA_B, WGMMA_SCALE_D, WGMMA_SCALE_A, WGMMA_SCALE_B, WGMMA_TRANS_A, WGMMA_TRANS_B };

// Special registers and symbols are registers too, set before a warp starts.
// clang-format off
#define SIM_AXES(X, name) X(name##_x, #name ".x") X(name##_y, #name ".y") X(name##_z, #name ".z")
#define SIM_SPECIALS(X) \
  SIM_AXES(X, tid) SIM_AXES(X, ntid) SIM_AXES(X, ctaid) SIM_AXES(X, nctaid) SIM_AXES(X, clusterid) \
  SIM_AXES(X, nclusterid) SIM_AXES(X, cluster_ctaid) SIM_AXES(X, cluster_nctaid) \
  X(cluster_ctarank, "cluster_ctarank") X(cluster_nctarank, "cluster_nctarank") \
  X(is_explicit_cluster, "is_explicit_cluster") X(laneid, "laneid") X(warpid, "warpid") X(nwarpid, "nwarpid") \
  X(smid, "smid") X(nsmid, "nsmid") X(gridid, "gridid") X(lanemask_eq, "lanemask_eq") X(lanemask_lt, "lanemask_lt") \
  X(lanemask_le, "lanemask_le") X(lanemask_gt, "lanemask_gt") X(lanemask_ge, "lanemask_ge") \
  X(total_smem_size, "total_smem_size") X(dynamic_smem_size, "dynamic_smem_size") X(aggr_smem_size, "aggr_smem_size") \
  X(reserved_smem_offset_begin, "reserved_smem_offset_begin") X(reserved_smem_offset_end, "reserved_smem_offset_end") \
  X(reserved_smem_offset_cap, "reserved_smem_offset_cap") \
  X(shared_symbol, "shared symbol") X(memory_symbol, "memory symbol")
// clang-format on

enum class Special : int {
#define X(name, text) name,
  SIM_SPECIALS(X)
#undef X
};

struct Preset {
  int slot;
  Special what;
  s64 value;  // of a symbol: its offset in shared memory, or in that of the module
};

constexpr u64 MEMORY_ALIGN = 256;

// What all lanes of a warp execute together.
constexpr bool is_collective(Op op) {
  switch (op) {
    case Op::ldmatrix:
    case Op::stmatrix:
    case Op::movmatrix:
    case Op::mma_sync:
    case Op::wgmma:
    case Op::wgmma_fence:
    case Op::wgmma_commit:
    case Op::wgmma_wait:
    case Op::setmaxnreg:
    case Op::tensormap_publish: return true;
    default: return false;
  }
}

// Of a multiprocessor, and what registers of a thread come in. A CTA takes SHARED_RESERVED bytes beside its own.
constexpr u32 REGISTERS = 65536, REGISTER_UNIT = 8, THREADS = 2048, CTAS = 32;
constexpr u32 SHARED_BYTES = 228 * 1024, SHARED_RESERVED = 1024;

struct Program {
  std::vector<Ins> code;
  std::vector<Slot> slots;
  std::vector<Preset> presets;
  std::vector<int> fragments;  // registers that wgmma uses
  u32 file_bytes = 0;
  u32 block[3] = {1, 1, 1}, cluster_shape[3] = {1, 1, 1}, cluster = 1;
  u32 shared_bytes = 0, dynamic_bytes = 0;
  std::vector<u8> memory;  // of the module: constants, then variables, with room to align them
  u32 constant_bytes = 0;
  u32 registers = 168;  // per thread, that the launch reserves
  bool registers_given = false;  // by .maxnreg; else they are the most that it may need

  u32 threads() const { return block[0] * block[1] * block[2]; }
  u64 memory_base() const { return (reinterpret_cast<u64>(memory.data()) + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN; }
};

// What went wrong, at which line of the PTX, and who else was involved.
struct Problem : std::runtime_error {
  std::string kind;
  int line = 0;
  std::string where;
  std::vector<std::pair<int, std::string>> others;
  Problem(std::string kind, const std::string& message) : std::runtime_error(message), kind(std::move(kind)) {}
};

}  // namespace sim

// From a function of one lane to a form: a loop over 32 lanes, and how its operands lie.
//
//   struct Add { template <class T> static T of(T a, T b) { return a + b; } };
//   case Op::add: return integers<Add>(ins.type);
//
// Included by each file of forms inside its own namespace, so that a file compiled for another processor shares nothing.
#if defined(__clang__)
#define SIM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SIM_INDEPENDENT _Pragma("GCC ivdep")
#else
#define SIM_INDEPENDENT
#endif

// Types of which registers hold the bits.
template <class T>
constexpr bool is_wide = sizeof(T) == 8;

template <class T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Kind::pred;
  else if constexpr (is_wide<T>)
    return Kind::wide;
  else
    return std::is_signed_v<T> && std::is_integral_v<T> ? Kind::signed_word : Kind::word;
}

template <class T>
using Lane = std::conditional_t<is_wide<T>, u64, u32>;

template <class T>
inline T get(const void* lanes, int l) {
  if constexpr (std::is_same_v<T, bool>)
    return *static_cast<const u32*>(lanes) >> l & 1;
  else if constexpr (std::is_floating_point_v<T>)
    return bits_to<T>(static_cast<const Lane<T>*>(lanes)[l]);
  else
    return static_cast<T>(static_cast<const Lane<T>*>(lanes)[l]);
}

template <class T>
inline Lane<T> lane_of(T value) {
  if constexpr (std::is_same_v<T, float>)
    return f32_bits(value);
  else if constexpr (std::is_same_v<T, double>)
    return bits_to<u64>(value);
  else if constexpr (is_wide<T>)
    return static_cast<u64>(value);
  else if constexpr (std::is_signed_v<T>)
    return static_cast<u32>(static_cast<s32>(value));
  else
    return static_cast<u32>(value);
}

template <class R, class F>
inline void each_lane(const Lanes& lanes, F value) {
  if constexpr (std::is_same_v<R, bool>) {
    u32 bits = 0;
    for (int l = 0; l < LANES; ++l) bits |= static_cast<u32>(value(l)) << l;
    *static_cast<u32*>(lanes.out[0]) = bits;
  } else {
    auto* out = static_cast<Lane<R>*>(lanes.out[0]);
    SIM_INDEPENDENT
    for (int l = 0; l < LANES; ++l) out[l] = lane_of<R>(value(l));
  }
}

// The form of a function; its first parameter may be the instruction, whose modifiers it looks at.
template <auto F, class R, class... A>
struct Each {
  static constexpr bool looks = std::is_invocable_v<decltype(F), const Ins&, A...>;
  template <size_t... I>
  static void loop(const Ins& ins, const Lanes& lanes, std::index_sequence<I...>) {
    each_lane<R>(lanes, [&](int l) {
      if constexpr (looks)
        return F(ins, get<A>(lanes.in[I], l)...);
      else
        return F(get<A>(lanes.in[I], l)...);
    });
  }
  static void run(const Ins& ins, const Lanes& lanes) { loop(ins, lanes, std::index_sequence_for<A...>()); }
};

template <auto F, class R, class... A>
constexpr Form form_from(R (*)(const Ins&, A...)) {
  return {Each<F, R, A...>::run, sizeof...(A), 1, {kind_of<A>()...}, {kind_of<R>()}};
}

template <auto F, class R, class... A>
constexpr Form form_from(R (*)(A...)) {
  return {Each<F, R, A...>::run, sizeof...(A), 1, {kind_of<A>()...}, {kind_of<R>()}};
}

template <auto F>
constexpr Form form() {
  return form_from<F>(F);
}

// The integer types of a form; untyped words are unsigned.
template <class F>
Form integers(Type type) {
  switch (type) {
    case Type::b16:
    case Type::u16: return form<&F::template of<u16>>();
    case Type::s16: return form<&F::template of<s16>>();
    case Type::b32:
    case Type::u32: return form<&F::template of<u32>>();
    case Type::s32: return form<&F::template of<s32>>();
    case Type::b64:
    case Type::u64: return form<&F::template of<u64>>();
    case Type::s64: return form<&F::template of<s64>>();
    default: return {};
  }
}

// The width alone matters.
template <class F>
Form words(Type type) {
  switch (bytes_of(type)) {
    case 2: return form<&F::template of<u16>>();
    case 4: return form<&F::template of<u32>>();
    case 8: return form<&F::template of<u64>>();
    default: return {};
  }
}

// The lanes where a comparison of operands 0 and 1 holds. A NaN is unordered.
template <class T, class V>
u32 where_holds(Word cmp, V value) {
  auto where = [&](auto holds) {
    u32 bits = 0;
    for (int l = 0; l < LANES; ++l) bits |= static_cast<u32>(holds(value(0, l), value(1, l))) << l;
    return bits;
  };
  switch (cmp) {
    case Word::eq: return where([](T a, T b) { return a == b; });
    case Word::ne: return where([](T a, T b) { return a < b || a > b; });
    case Word::lt:
    case Word::lo: return where([](T a, T b) { return a < b; });
    case Word::le:
    case Word::ls: return where([](T a, T b) { return a <= b; });
    case Word::gt:
    case Word::hi: return where([](T a, T b) { return a > b; });
    case Word::ge:
    case Word::hs: return where([](T a, T b) { return a >= b; });
    case Word::equ: return where([](T a, T b) { return !(a < b || a > b); });
    case Word::neu: return where([](T a, T b) { return !(a == b); });
    case Word::ltu: return where([](T a, T b) { return !(a >= b); });
    case Word::leu: return where([](T a, T b) { return !(a > b); });
    case Word::gtu: return where([](T a, T b) { return !(a <= b); });
    case Word::geu: return where([](T a, T b) { return !(a < b); });
    case Word::num: return where([](T a, T b) { return a == a && b == b; });
    default: return where([](T a, T b) { return a != a || b != b; });
  }
}

// Runs the jobs of a file on the kernels of this program: buffers between closed pages, outputs poisoned, results to
// another file. The layout of both files is in src/host/job.rs.

#include <csignal>
#include <unistd.h>

namespace emu {

constexpr u64 PAGE = 4096;
constexpr u8 CANARY = 0xC5;
// As a float of any width NaN, as an integer an odd negative number.
constexpr u8 POISON[2] = {0xAA, 0xFF};

enum Kind : u32 { INPUT = 0, OUTPUT = 1, CHANGED = 2 };

struct Buffer {
  u32 kind;
  u64 bytes, room;
  u8 *map, *data;
  u64 mapped;
};

inline std::vector<Buffer> buffers;

inline void on_fault(int, siginfo_t* info, void*) {
  const u8* at = static_cast<const u8*>(info->si_addr);
  fprintf(stderr, "kernel %s, block (%u, %u, %u), thread %u: ", block().kernel ? block().kernel->name : "?", block().id.x,
          block().id.y, block().id.z, block().now ? block().now->id : 0);
  for (u64 i = 0; i < buffers.size(); ++i) {
    const Buffer& b = buffers[i];
    if (at >= b.map && at < b.map + b.mapped) {
      fprintf(stderr, "touches byte %lld of buffer %llu, %s of %llu bytes\n", (long long)(at - b.data),
              (unsigned long long)i, b.kind == INPUT ? "an input" : "an output", (unsigned long long)b.bytes);
      _exit(3);
    }
  }
  fprintf(stderr, "touches an address outside every buffer\n");
  _exit(3);
}

// A buffer whose end (or start) touches a closed page. Sizes are rounded to 16, so that starts stay aligned; the bytes
// between hold a canary.
inline Buffer allocate(u32 kind, u64 bytes, bool low) {
  Buffer b{kind, bytes, (bytes + 15) / 16 * 16, nullptr, nullptr, 0};
  u64 inner = (b.room + PAGE - 1) / PAGE * PAGE;
  b.mapped = inner + 2 * PAGE;
  b.map = static_cast<u8*>(mmap(nullptr, b.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (b.map == MAP_FAILED) fail("no memory for buffers");
  memset(b.map + PAGE, CANARY, inner);
  b.data = low ? b.map + PAGE : b.map + PAGE + inner - b.room;
  for (u64 i = 0; i < bytes; ++i) b.data[i] = POISON[i % 2];
  return b;
}

inline void close_edges(const Buffer& b) {
  mprotect(b.map, PAGE, PROT_NONE);
  mprotect(b.map + b.mapped - PAGE, PAGE, PROT_NONE);
  if (b.kind == INPUT) mprotect(b.map + PAGE, b.mapped - 2 * PAGE, PROT_READ);
}

inline void check_canary(const Buffer& b) {
  for (const u8* p = b.map + PAGE; p < b.map + b.mapped - PAGE; ++p)
    if ((p < b.data || p >= b.data + b.bytes) && *p != CANARY) fail("writes beside a buffer");
}

struct Reader {
  FILE* f;
  template <class T>
  T get() {
    T v;
    if (fread(&v, sizeof v, 1, f) != 1) {
      fprintf(stderr, "the job file is cut short\n");
      _Exit(4);
    }
    return v;
  }
  void bytes(u8* to, u64 n) {
    if (n && fread(to, 1, n, f) != n) {
      fprintf(stderr, "the job file is cut short\n");
      _Exit(4);
    }
  }
};

inline void launch(const Kernel& k, const void* args, Dim grid, u32 threads, u32 shared, bool reverse) {
  Block& block = emu::block();
  block.kernel = &k;
  block.args = args;
  block.grid = grid;
  block.threads = threads;
  block.reverse = reverse;
  block.now = nullptr;
  if (threads == 0 || threads > k.threads) fail("more threads than the kernel was made for");
  if (block.thread.size() < threads) block.thread.resize(threads);
  block.warp.resize((threads + 31) / 32);
  Buffer s = allocate(OUTPUT, shared, false);
  close_edges(s);
  block.shared = s.data;
  u64 blocks = u64(grid.x) * grid.y * grid.z;
  for (u64 n = 0; n < blocks; ++n) {
    u64 i = reverse ? blocks - 1 - n : n;
    block.id = {u32(i % grid.x), u32(i / grid.x % grid.y), u32(i / grid.x / grid.y)};
    memset(block.shared, 0xFF, shared);
    run_block();
  }
  munmap(s.map, s.mapped);
}

struct Launch {
  const Kernel* kernel;
  Dim grid;
  u32 threads, shared;
  std::vector<u64> args;
};

inline std::vector<std::vector<Launch>> program;
inline bool falling;

// All launches of the device that runs.
inline void device_main() {
  u64 me = 0;
  while (devices[me] != device) ++me;
  for (const Launch& l : program[me]) {
    block().kernel = l.kernel;
    if (l.kernel->args != 8 * l.args.size()) fail("arguments of another size than the kernel's struct");
    launch(*l.kernel, l.args.data(), l.grid, l.threads, l.shared, falling);
  }
  device->done = true;
  next_device();
}

// Devices take turns: each runs until it waits for another, so that every one gets as far ahead as it can.
inline void run_devices(std::vector<std::vector<Launch>>& of, bool reverse) {
  program.swap(of);
  falling = reverse;
  while (devices.size() < program.size()) devices.push_back(new Device());
  u64 left = program.size();
  for (u64 i = 0; i < program.size(); ++i) {
    devices[i]->done = false;
    devices[i]->fiber.start(device_main);
  }
  while (left) {
    for (u64 n = 0; n < program.size(); ++n) {
      device = devices[reverse ? program.size() - 1 - n : n];
      if (device->done) continue;
      switch_to(all_devices, device->fiber.context);
      left -= device->done;
    }
    ++rounds;
  }
}

inline void run_job(Reader& in, FILE* out) {
  if (devices.empty()) devices.push_back(new Device());
  device = devices[0];
  u32 flags = in.get<u32>();
  u32 count = in.get<u32>();
  buffers.clear();
  for (u32 i = 0; i < count; ++i) {
    u32 kind = in.get<u32>();
    u64 bytes = in.get<u64>();
    Buffer b = allocate(kind, bytes, flags & 2);
    if (kind != OUTPUT) in.bytes(b.data, bytes);
    close_edges(b);
    buffers.push_back(b);
  }
  u32 launches = in.get<u32>();
  std::vector<std::vector<Launch>> of;
  for (u32 l = 0; l < launches; ++l) {
    Launch one{};
    u32 on = in.get<u32>(), length = in.get<u32>();
    char name[256] = {};
    if (length >= sizeof name || on >= 64) fail("a kernel name that is too long, or too many devices");
    in.bytes(reinterpret_cast<u8*>(name), length);
    one.grid = Dim{in.get<u32>(), in.get<u32>(), in.get<u32>()};
    one.threads = in.get<u32>(), one.shared = in.get<u32>();
    u32 words = in.get<u32>();
    for (u32 i = 0; i < words; ++i) one.args.push_back(reinterpret_cast<u64>(buffers.at(in.get<u32>()).data));
    for (const Kernel* k : Kernel::all())
      if (strcmp(k->name, name) == 0) one.kernel = k;
    if (!one.kernel) {
      fprintf(stderr, "no kernel %s in this program\n", name);
      _Exit(4);
    }
    if (of.size() <= on) of.resize(on + 1);
    of[on].push_back(one);
  }
  run_devices(of, flags & 1);
  for (const Buffer& b : buffers) {
    check_canary(b);
    if (b.kind != INPUT) fwrite(b.data, 1, b.bytes, out);
    munmap(b.map, b.mapped);
  }
}

}  // namespace emu

int main(int argc, char** argv) {
  if (argc != 3) return 4;
  static u8 stack[65536];
  stack_t alt{stack, 0, sizeof stack};
  sigaltstack(&alt, nullptr);
  struct sigaction act {};
  act.sa_sigaction = emu::on_fault;
  act.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &act, nullptr);
  sigaction(SIGBUS, &act, nullptr);
  FILE* in = fopen(argv[1], "rb");
  FILE* out = fopen(argv[2], "wb");
  if (!in || !out) return 4;
  emu::Reader reader{in};
  u32 jobs = reader.get<u32>();
  for (u32 i = 0; i < jobs; ++i) {
    emu::run_job(reader, out);
    fflush(out);
    fprintf(stderr, "job %u done\n", i);
  }
  return fclose(out) == 0 ? 0 : 4;
}

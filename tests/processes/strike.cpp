// A library that is loaded before the program (LD_PRELOAD) and strikes one rank of a job at a named function of it:
//
//   STRIKE="RANK KIND CALLS FUNCTION"
//
// When rank RANK enters FUNCTION (lockstep::parallel::tree_sum, as in the program's symbols) for the CALLS-th time:
//   kill, stop  it gets SIGKILL, SIGSTOP
//   exit        it ends by _exit(3)
//   throw       the call throws std::runtime_error
//   hang        the call does not return
//   pause       the call begins a second later
//   disk_full   from now on no file takes a byte more
// The file STRIKE_MARK is made just before.
// The function's first byte is replaced by a breakpoint, so the program itself has no hooks for this.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

constexpr uint8_t kBreakpoint = 0xCC;
constexpr greg_t kSingleStep = 0x100;  // of the flags: the processor traps again after one instruction

uint8_t* function = nullptr;
uint8_t first_byte = 0;
int calls_left = 0;
std::string kind;
std::atomic<bool> disk_is_full = false;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "strike: %s\n", why.c_str());
  ::_exit(99);
}

[[noreturn]] void throw_here() {
  throw std::runtime_error("struck");
}

void strike(greg_t& next_instruction) {
  ::close(::open(std::getenv("STRIKE_MARK"), O_CREAT | O_WRONLY, 0600));
  if (kind == "kill") ::kill(::getpid(), SIGKILL);
  if (kind == "stop") ::kill(::getpid(), SIGSTOP);
  if (kind == "exit") ::_exit(3);
  if (kind == "throw") next_instruction = reinterpret_cast<greg_t>(&throw_here);  // its caller has called that
  if (kind == "disk_full") disk_is_full = true;
  while (kind == "hang") ::usleep(100'000);
  if (kind == "pause") ::usleep(1'000'000);
}

void on_trap(int, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (info->si_code == TRAP_TRACE) {
    registers[REG_EFL] &= ~kSingleStep;
    if (calls_left > 0) *function = kBreakpoint;
    return;
  }
  registers[REG_RIP] = reinterpret_cast<greg_t>(function);
  *function = first_byte;
  if (--calls_left == 0)
    strike(registers[REG_RIP]);
  else
    registers[REG_EFL] |= kSingleStep;
}

// Where the program is in memory, which is the first of the loaded objects.
uintptr_t program_base() {
  uintptr_t base = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = object->dlpi_addr;
        return 1;
      },
      &base);
  return base;
}

bool is_function(const char* mangled, const std::string& name) {
  // Most symbols need not be demangled.
  if (std::strstr(mangled, name.substr(name.rfind(':') + 1).c_str()) == nullptr) return false;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
  const std::string full = text == nullptr ? "" : text;
  std::free(text);
  return (full.starts_with(name + "(") || full.starts_with(name + "[abi:cxx11](")) &&
         full.find("[clone") == std::string::npos;
}

uint8_t* find_function(const std::string& name) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(bytes.data() + sections[i].sh_offset);
    const char* const names = bytes.data() + sections[sections[i].sh_link].sh_offset;
    for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s)
      if (symbols[s].st_value != 0 && is_function(names + symbols[s].st_name, name))
        return reinterpret_cast<uint8_t*>(program_base() + symbols[s].st_value);
  }
  give_up("the program has no function " + name);
}

void prepare() {
  const char *const wanted = std::getenv("STRIKE"), *const rank = std::getenv("RANK");
  if (wanted == nullptr || rank == nullptr) return;
  std::string program(4096, 0);
  program.resize(
      static_cast<size_t>(std::max<ssize_t>(0, ::readlink("/proc/self/exe", program.data(), program.size()))));
  if (!program.ends_with("/lockstep")) return;  // a shell around it
  std::istringstream words(wanted);
  std::string struck, name;
  words >> struck >> kind >> calls_left >> name;
  if (struck != rank) return;
  function = find_function(name);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  void* const start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(function) / page * page);
  if (::mprotect(start, page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) give_up("no breakpoints are allowed here");
  struct sigaction action {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGTRAP, &action, nullptr);
  first_byte = *function;
  *function = kBreakpoint;
}

const struct AtStart {
  AtStart() { prepare(); }
} at_start;  // after the values above

bool is_refused(int fd) {
  struct stat status {};
  if (!disk_is_full || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  errno = ENOSPC;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return is_refused(fd) ? -1 : real(fd, bytes, count);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return is_refused(fd) ? -1 : real(fd, bytes, count, at);
}

}  // extern "C"

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/source.h"

#include "policy/compile.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::policy {
namespace {

class Descriptor {
public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0)
      close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

private:
  int fd_;
};

std::string octal(mode_t mode) {
  char buffer[16];
  snprintf(buffer, sizeof(buffer), "%04o", mode & 07777u);
  return buffer;
}

// Reasons not to obey a file, from its own metadata so that nothing can change in between.
std::optional<Refusal> distrust(const struct stat& status, Secrecy secrecy, size_t limit,
                                const std::string& path) {
  if (!S_ISREG(status.st_mode))
    return Refusal{S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file",
                   "name a file"};
  if (status.st_uid != 0 && status.st_uid != geteuid())
    return Refusal{"belongs to user " + std::to_string(status.st_uid) +
                       ", neither to root nor to user " + std::to_string(geteuid()),
                   "chown it, or copy it to a file of your own"};
  const mode_t forbidden = secrecy == Secrecy::secret ? 077 : 022;
  if (status.st_mode & forbidden)
    return Refusal{secrecy == Secrecy::secret
                       ? "can be read by others (mode " + octal(status.st_mode) + ")"
                       : "can be written by others (mode " + octal(status.st_mode) + ")",
                   std::string(secrecy == Secrecy::secret ? "chmod 600 " : "chmod go-w ") + path};
  if (static_cast<size_t>(status.st_size) > limit)
    return Refusal{"is longer than " + std::to_string(limit) + " bytes", ""};
  return std::nullopt;
}

} // namespace

std::optional<std::string> read_trusted(const std::string& path, Secrecy secrecy, size_t limit,
                                        Refusal& refusal) {
  // Non-blocking, so that a FIFO cannot hold the program up; it is refused below.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    const int error = errno;
    refusal = {std::string("cannot be read: ") + strerror(error), "",
               error == ENOENT || error == ENOTDIR};
    return std::nullopt;
  }
  if (auto reason = distrust(status, secrecy, limit, path)) {
    refusal = std::move(*reason);
    return std::nullopt;
  }
  std::string bytes;
  char buffer[2048];
  while (bytes.size() <= limit) {
    const ssize_t count = read(file.get(), buffer, sizeof(buffer));
    if (count == 0)
      return bytes;
    if (count > 0)
      bytes.append(buffer, static_cast<size_t>(count));
    else if (errno != EINTR) {
      refusal = {std::string("cannot be read: ") + strerror(errno), ""};
      return std::nullopt;
    }
  }
  refusal = {"is longer than " + std::to_string(limit) + " bytes", ""};
  return std::nullopt;
}

std::vector<uint8_t> read_key(const std::string& path, const std::string& file,
                              std::vector<Error>& errors) {
  constexpr size_t shortest = 16, longest = 4096;
  Refusal refusal;
  auto bytes = read_trusted(path, Secrecy::secret, longest, refusal);
  if (bytes && bytes->ends_with('\n')) // as "openssl rand -hex 32 >file" leaves it
    bytes->pop_back();
  if (bytes && bytes->size() < shortest)
    refusal = {"holds " + std::to_string(bytes->size()) + " bytes, too few for a key",
               "use at least " + std::to_string(shortest) + ", such as from openssl rand -hex 32"};
  if (bytes && bytes->size() >= shortest)
    return {bytes->begin(), bytes->end()};
  errors.push_back({file, "/link/key_file", path + " " + refusal.reason, refusal.remedy});
  return {};
}

} // namespace adverb::policy

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"

#include "tools/doctor.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

using namespace adverb::tools;
using adverb::module::Failure;
using adverb::module::Limits;

namespace {

using Level = Check::Level;

/// A host laid out in a folder: files by their path there, and links.
struct Layout {
  std::filesystem::path root;

  explicit Layout(const std::map<std::string, std::string>& files = {},
                  const std::map<std::string, std::string>& links = {}) {
    char name[] = "/tmp/adverb-host-XXXXXX";
    root = mkdtemp(name);
    for (const auto& [path, content] : files) {
      std::filesystem::create_directories(
          (root.string() + path).substr(0, (root.string() + path).rfind('/')));
      std::ofstream(root.string() + path, std::ios::binary) << content;
    }
    for (const auto& [path, target] : links) {
      std::filesystem::create_directories(
          (root.string() + path).substr(0, (root.string() + path).rfind('/')));
      std::filesystem::create_symlink(target, root.string() + path);
    }
  }
  ~Layout() { std::filesystem::remove_all(root); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  HostFiles host() const { return HostFiles(root.string()); }
};

const Check& only(const Report& report) {
  REQUIRE(report.checks().size() == 1);
  return report.checks().front();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

const std::string efi = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const std::string lockdown = "/sys/kernel/security/lockdown";
const std::string enforce = "/sys/module/module/parameters/sig_enforce";
const std::string loaded = "/sys/module/adverb/version";
const std::string release = "/proc/sys/kernel/osrelease";
const std::string modules = "/lib/modules/6.12.1-amd64";
const std::string secure_on("\x06\0\0\0\x01", 5), secure_off("\x06\0\0\0\0", 5);

} // namespace

TEST_CASE("doctor says whether the module is loaded, and which, or could be", "[module][doctor]") {
  const struct {
    std::map<std::string, std::string> files;
    const char* said;
  } cases[] = {
      {{{loaded, "1\n"}, {release, "6.12.1-amd64\n"}}, "adverb.ko 1 is loaded"},
      {{{release, "6.12.1-amd64\n"}}, "not loaded, and not installed for kernel 6.12.1-amd64"},
      {{{release, "6.12.1-amd64\n"},
        {modules + "/modules.dep", "kernel/x.ko: kernel/y.ko\nupdates/dkms/adverb.ko.xz:\n"}},
       "`modprobe adverb` loads /lib/modules/6.12.1-amd64/updates/dkms/adverb.ko.xz"},
      // Others whose names only begin or end so.
      {{{release, "6.12.1-amd64\n"},
        {modules + "/modules.dep", "extra/adverb_test.ko: x/adverb.ko\nextra/notadverb.ko:\n"}},
       "not installed"},
  };
  for (const auto& one : cases) {
    const Layout layout(one.files);
    Report report;
    check_loaded(report, layout.host());
    INFO(only(report).finding);
    CHECK(only(report).level == Level::ok); // its absence is no fault
    CHECK(has(only(report).finding, one.said));
  }
}

TEST_CASE("doctor says why the kernel would refuse the module, and the remedy",
          "[module][doctor]") {
  const std::string none = "[none] integrity confidentiality\n";
  const std::string integrity = "none [integrity] confidentiality\n";
  const std::string confidential = "none integrity [confidentiality]\n";
  const std::map<std::string, std::string> installed = {
      {release, "6.12.1-amd64\n"}, {modules + "/modules.dep", "updates/dkms/adverb.ko:\n"}};
  const std::string file = modules + "/updates/dkms/adverb.ko";
  const struct {
    std::map<std::string, std::string> files;
    Level level;
    const char* said;
    const char* remedy;
  } cases[] = {
      {{}, Level::ok, "no UEFI, lockdown not told, module.sig_enforce off; the kernel takes", ""},
      {{{efi, secure_off}, {lockdown, none}, {enforce, "N\n"}},
       Level::ok,
       "Secure Boot off, lockdown none, module.sig_enforce off; the kernel takes unsigned",
       ""},
      // Validation switched off in shim: the kernel is not locked down.
      {{{efi, secure_on}, {lockdown, none}, {enforce, "N\n"}},
       Level::ok,
       "Secure Boot on, lockdown none",
       ""},
      {{{efi, secure_on}, {lockdown, integrity}, {enforce, "N\n"}},
       Level::warn,
       "Secure Boot on, lockdown integrity, module.sig_enforce off; the kernel takes signed",
       "mokutil --import /var/lib/dkms/mok.pub"},
      {{{efi, secure_on}, {lockdown, integrity}, {"/var/lib/shim-signed/mok/MOK.der", "k"}},
       Level::warn,
       "signed modules only",
       "mokutil --import /var/lib/shim-signed/mok/MOK.der"},
      {{{efi, secure_on}, {lockdown, confidential}},
       Level::warn,
       "lockdown confidentiality",
       "Enroll MOK"},
      // securityfs is not mounted, as in containers.
      {{{efi, secure_on}}, Level::warn, "Secure Boot on, lockdown not told", "mokutil"},
      {{{efi, secure_off}, {lockdown, none}, {enforce, "Y\n"}},
       Level::warn,
       "module.sig_enforce on",
       "mokutil"},
      {{{lockdown, integrity}}, Level::warn, "no UEFI", "boot without lockdown="},
      {{{efi, secure_on}, {lockdown, integrity}, {loaded, "1\n"}},
       Level::ok,
       "adverb.ko is loaded already",
       ""},
      {{{efi, secure_on}, {lockdown, integrity}, {file, "ELF~Module signature appended~\n"}},
       Level::ok,
       "adverb.ko is signed; its key must be enrolled",
       ""},
      {{{efi, secure_on}, {lockdown, integrity}, {file, "ELF"}},
       Level::warn,
       "signed modules only",
       "mokutil"},
      // A variable cut short says nothing.
      {{{efi, secure_on.substr(0, 4)}, {lockdown, none}}, Level::ok, "Secure Boot off", ""},
      {{{lockdown, "garbage"}}, Level::ok, "lockdown not told", ""},
  };
  for (const auto& one : cases) {
    auto files = one.files;
    files.insert(installed.begin(), installed.end());
    const Layout layout(files);
    Report report;
    check_signing(report, layout.host());
    INFO(only(report).finding << " / " << only(report).remedy);
    CHECK(only(report).level == one.level);
    CHECK(has(only(report).finding, one.said));
    CHECK(has(only(report).remedy, one.remedy));
    CHECK((only(report).level == Level::ok) == only(report).remedy.empty());
  }
}

TEST_CASE("doctor says who may use the device, and what to do for the rest", "[module][doctor]") {
  constexpr adverb_version ours{.module = ADVERB_MODULE_VERSION,
                                .minimum_library = ADVERB_MINIMUM_LIBRARY};
  constexpr adverb_version newer{.module = ADVERB_MODULE_VERSION + 1,
                                 .minimum_library = ADVERB_MODULE_VERSION + 1};
  const struct {
    DeviceNode node;
    Level level;
    const char* said; // in finding or remedy
  } cases[] = {
      {{0, "rdma", 0660, 0, ours}, Level::ok, "group rdma, mode 0660"},
      {{ENOENT, "", 0, 0, {}}, Level::warn, "devtmpfs"},
      {{0, "root", 0660, 0, ours}, Level::warn, "60-adverb.rules"},
      {{0, "rdma", 0666, 0, ours}, Level::warn, "mode 0666 instead of 0660"},
      {{0, "rdma", 0660, EACCES, {}}, Level::warn, "usermod -aG rdma"},
      {{0, "rdma", 0660, ENXIO, {}}, Level::warn, "No such device"},
      {{0, "rdma", 0660, 0, {}}, Level::fail, "does not answer"},
      {{0, "rdma", 0660, 0, newer}, Level::fail, "install a newer adverb"},
  };
  for (const auto& one : cases) {
    Report report;
    check_node(report, one.node);
    INFO(only(report).finding << " / " << only(report).remedy);
    CHECK(only(report).level == one.level);
    CHECK(has(only(report).finding + only(report).remedy, one.said));
  }
}

TEST_CASE("doctor shows the module's limits, or why it cannot", "[module][doctor]") {
  using Why = Failure::Why;
  const struct {
    adverb::module::Result<Limits> answer;
    Level level;
    const char* said;
  } cases[] = {
      {Limits{.regions = 65536, .pages = 1 << 20}, Level::ok, "65536 regions and 4096 MiB"},
      {Failure{Why::absent, "a", "b"}, Level::warn, "network namespace"},
      {Failure{Why::version, "other version", "b"}, Level::fail, "other version"},
      {Failure{Why::malformed, "not understood", "b"}, Level::fail, "not understood"},
      {Failure{Why::other, "no memory", "b"}, Level::warn, "no memory"},
  };
  for (const auto& one : cases) {
    Report report;
    check_limits(report, one.answer);
    CHECK(only(report).level == one.level);
    CHECK(has(only(report).finding + only(report).remedy, one.said));
  }
}

TEST_CASE("doctor says for each device whether its IOMMU is fit for np", "[module][doctor]") {
  const std::string device = "/sys/class/infiniband/mlx5_0/device/";
  const std::string type = "/sys/kernel/iommu_groups/7/type";
  const struct {
    std::map<std::string, std::string> files, links;
    Level level;
    const char* said;
  } cases[] = {
      {{{type, "DMA-FQ\n"}},
       {{device + "iommu_group", "../../groups/7"}, {device + "iommu", "../../virtual/dmar0"}},
       Level::ok,
       "dmar0, group 7, DMA-FQ: fit"},
      {{{type, "DMA\n"}},
       {{device + "iommu_group", "x/7"}, {device + "iommu", "x/ivhd0"}},
       Level::ok,
       "ivhd0, group 7, DMA: fit"},
      {{{type, "identity\n"}},
       {{device + "iommu_group", "x/7"}, {device + "iommu", "x/dmar0"}},
       Level::warn,
       "not translated"},
      {{{type, "unmanaged\n"}},
       {{device + "iommu_group", "x/7"}, {device + "iommu", "x/dmar0"}},
       Level::warn,
       "VFIO"},
      {{{type, "DMA\n"}},
       {{device + "iommu_group", "x/7"}, {device + "iommu", "x/smmu3.0x2b"}},
       Level::warn,
       "does not know the tables"},
      {{{device + "vendor", "0x15b3\n"}}, {}, Level::warn, "behind no IOMMU"},
  };
  for (const auto& one : cases) {
    for (const bool with_module : {true, false}) {
      auto files = one.files;
      files["/proc/cmdline"] = "quiet intel_iommu=on";
      if (with_module)
        files[loaded] = "1\n";
      const Layout layout(files, one.links);
      Report report;
      check_iommu(report, layout.host());
      REQUIRE(report.checks().size() == 2);
      const Check& check = report.checks()[1];
      INFO(check.finding);
      CHECK(check.what == "IOMMU of mlx5_0");
      CHECK(has(check.finding, one.said));
      // Nobody needs it without the module.
      CHECK(check.level == (with_module ? one.level : Level::ok));
    }
  }
}

TEST_CASE("doctor names IOMMUs and their boot options, and asks none of software devices",
          "[module][doctor]") {
  const Layout layout({{"/sys/class/iommu/dmar0/x", ""},
                       {"/proc/cmdline", "quiet intel_iommu=on iommu.passthrough=0 ro\n"},
                       {"/sys/class/infiniband/rxe0/parent", "eth0\n"}});
  Report report;
  check_iommu(report, layout.host());
  CHECK(only(report).finding ==
        "dmar0, booted with intel_iommu=on iommu.passthrough=0; only backend np depends on it");
}

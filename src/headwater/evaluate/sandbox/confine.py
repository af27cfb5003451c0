"""Giving up, for good, what a program does not need. Standard library only: it runs inside the sandbox, on Linux.

`confine` is called once by a fresh process before anything untrusted is loaded, and returns what it achieved:

- full: user, pid, network, mount, ipc and uts namespaces of its own, the scratch folder a file system of its own;
- reduced: what both levels have: resource limits, no new privileges, Landlock (reads the standard library, writes the
  scratch folder), seccomp (no sockets, no processes, no signals, no tracing, mounting, namespaces, keys, bpf), and a
  user id of its own where the parent is root.

Numbers are those of linux/landlock.h, linux/seccomp.h, linux/filter.h and the system call tables of x86_64 and arm64.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

# name: (x86_64, arm64); None where an architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "connect": (42, 203), "sendto": (44, 206), "bind": (49, 200), "listen": (50, 201),
    "socketpair": (53, 199), "sendmsg": (46, 211), "fork": (57, None), "vfork": (58, None),
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "setsid": (112, 157), "setpgid": (109, 154), "setuid": (105, 146), "setgid": (106, 144), "setresuid": (117, 147),
    "setresgid": (119, 149), "setreuid": (113, 145), "setregid": (114, 143), "setgroups": (116, 159),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "sethostname": (170, 161), "personality": (135, 92), "quotactl": (179, 60),
    "acct": (163, 89), "syslog": (103, 116), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "prlimit64": (302, 261), "setrlimit": (160, 164), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}
_EPERM, _ENOSYS = 1, 38
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD = 0x00010000
_NAMESPACES = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000, "net": 0x40000000}
_NEWUSER = 0x10000000


class ConfineError(OSError):
    """A protection could not be had."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise ConfineError(number, f"{what}: {os.strerror(number)}")
    return result


def use_library(paths: list[str]) -> None:
    """Import the standard library from `paths` from here on, packages that are loaded already included."""
    before = os.path.dirname(os.__file__)
    sys.path[:] = paths
    for module in list(sys.modules.values()):
        search = getattr(module, "__path__", None)
        if isinstance(search, list):
            search[:] = [
                paths[0] + place.removeprefix(before) if place.startswith(before) else place for place in search
            ]


def begin() -> dict[str, Any]:
    """Read the configuration from standard input, confine this process and report what was achieved, as a line on
    `report_fd`. A process that cannot be confined ends here."""
    config: dict[str, Any] = json.loads(sys.stdin.readline())
    use_library(config["library"])
    try:
        report = {"confined": confine(config)}
    except OSError as error:
        os.write(config["report_fd"], json.dumps({"failed": str(error)}).encode() + b"\n")
        os._exit(3)
    os.write(config["report_fd"], json.dumps(report).encode() + b"\n")
    return config


def confine(config: dict[str, Any]) -> list[str]:
    """Confine this process as `config` says (level, scratch, uid, limits). Names of the protections in place.

    At level full it forks: the caller goes on as first process of its namespaces, and the outer one ends with it.
    Raises ConfineError if a protection of the level cannot be had.
    """
    if config["level"] == "none":
        _limit(config)
        return ["limits"]
    done = []
    if config["level"] == "full":
        _namespaces(config)
        done += ["namespaces", "scratch file system"]
    os.chdir(config["scratch"])
    if config["uid"] is not None:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        done.append("own uid")
    _check(_libc.prctl(1, 9, 0, 0, 0), "PR_SET_PDEATHSIG")  # die with the parent; after setuid, which clears it
    _check(_libc.prctl(4, 0, 0, 0, 0), "PR_SET_DUMPABLE")
    _check(_libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _landlock(config["scratch"], config["library"])
    _limit(config)
    _seccomp()
    return [*done, "landlock", "limits", "seccomp"]


def _limit(config: dict[str, Any]) -> None:
    cpu = int(config["seconds"]) + 2
    for kind, value in (
        (resource.RLIMIT_AS, config["memory_bytes"]),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, config["file_bytes"]),
        (resource.RLIMIT_NOFILE, config["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    if config["uid"] is not None or config["level"] == "full":
        resource.setrlimit(resource.RLIMIT_NPROC, (config["threads"], config["threads"]))


def _namespaces(config: dict[str, Any]) -> None:
    uid, gid = os.getuid(), os.getgid()
    flags = sum(_NAMESPACES.values()) | (0 if uid == 0 else _NEWUSER)
    _check(_libc.unshare(flags), "unshare")
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    child = os.fork()
    if child:
        for fd in range(3, 64):  # the channel belongs to the child alone
            try:
                os.close(fd)
            except OSError:
                continue
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
    _check(_libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None), "private mounts")
    for folder, options in ((config["scratch"], f"size={config['file_bytes']},mode=0777"), ("/proc", "size=4k")):
        if os.path.isdir(folder):
            _check(_libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0x2 | 0x4, options.encode()), f"mount {folder}")


# Landlock.

_READ = 0x4 | 0x8  # files, folders
_ALL_FILES = (1 << 13) - 1


_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")
"""Readable beside the standard library: what its compiled modules load."""


def _landlock(scratch: str, library: list[str]) -> None:
    abi = _check(_libc.syscall(444, None, ctypes.c_size_t(0), 1), "landlock")
    files = _ALL_FILES | (1 << 13 if abi >= 2 else 0) | (1 << 14 if abi >= 3 else 0) | (1 << 15 if abi >= 5 else 0)
    network = 0x3 if abi >= 4 else 0
    scoped = 0x3 if abi >= 6 else 0
    attributes = struct.pack("QQQ", files, network, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _check(_libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock ruleset")
    rules = [(path, _READ) for path in (*library, *_SYSTEM) if os.path.exists(path)]
    rules.append((scratch, files & ~((1 << 6) | (1 << 9) | (1 << 10) | (1 << 11))))  # no devices, sockets, pipes
    for path, access in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            access &= 0x1 | 0x2 | 0x4 | (1 << 14 if abi >= 3 else 0)
            access |= 0x2 if path == "/dev/null" else 0
        rule = struct.pack("=Qi", access, fd)
        _check(_libc.syscall(445, ruleset, 1, rule, 0), f"landlock rule {path}")
        os.close(fd)
    _check(_libc.syscall(446, ruleset, 0), "landlock")
    os.close(ruleset)


# Seccomp.


def _filter() -> bytes:
    """A classic BPF program over struct seccomp_data (nr at 0, arch at 4, arguments from 16)."""
    if platform.machine() not in _ARCHITECTURES:
        raise ConfineError(_ENOSYS, f"no seccomp filter for {platform.machine()}")
    index, arch = _ARCHITECTURES[platform.machine()]
    load, jump_equal, jump_at_least, jump_set, end = 0x20, 0x15, 0x35, 0x45, 0x06
    code = [(load, 0, 0, 4), (jump_equal, 1, 0, arch), (end, 0, 0, _KILL), (load, 0, 0, 0)]
    code += [(jump_at_least, 0, 1, 0x40000000), (end, 0, 0, _KILL)]  # x32 has other numbers
    for numbers in _DENIED.values():
        number = numbers[index]
        if number is not None:
            code += [(jump_equal, 0, 1, number), (end, 0, 0, _ERRNO | _EPERM)]
    # glibc falls back from clone3, whose flags a filter cannot see, to clone; only threads may be made.
    code += [(jump_equal, 0, 1, _CLONE3[index]), (end, 0, 0, _ERRNO | _ENOSYS)]
    code += [(jump_equal, 0, 3, _CLONE[index]), (load, 0, 0, 16), (jump_set, 1, 0, _CLONE_THREAD)]
    code += [(end, 0, 0, _ERRNO | _EPERM), (end, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _seccomp() -> None:
    program = ctypes.create_string_buffer(_filter())
    size = (len(program) - 1) // 8
    header = struct.pack("HxxxxxxP", size, ctypes.addressof(program))
    _check(_libc.prctl(22, 2, header, 0, 0), "seccomp")

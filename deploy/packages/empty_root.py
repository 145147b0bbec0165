"""A folder to chroot into that holds a Python environment and what it links with, as a small container."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Beside what is linked: how names are looked up, which the C library loads by itself.
LOADED = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1")
DEVICES = {"null": (1, 3), "zero": (1, 5), "urandom": (1, 9)}


def make_root(root: Path, folders: Iterable[Path]) -> None:
    """Fill a folder: the given ones at the same paths, the libraries they need, and what every system has.

    Args:
        root: made here; on the file system of the folders, whose files are linked and not copied.
        folders: absolute paths, such as those of a Python and of an environment of it.
    """
    root.mkdir()
    libraries: set[Path] = set()
    for folder in folders:
        target = root / folder.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, target, symlinks=True, copy_function=os.link)
        libraries |= needed_libraries(folder)
    for library in libraries:
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
    for name in ("proc", "dev", "etc", "tmp", "dev/shm"):
        (root / name).mkdir(exist_ok=True)
    for name in ("tmp", "dev/shm"):
        (root / name).chmod(0o1777)
    (root / "etc/passwd").write_text("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    for name, (major, minor) in DEVICES.items():
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (root / "dev" / name).chmod(0o666)


def needed_libraries(folder: Path) -> set[Path]:
    """Return the libraries outside a folder that programs and libraries in it are linked with."""
    objects = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and (".so" in path.name or path.parent.name == "bin")
    ]
    found: set[Path] = set()
    for i in range(0, len(objects), 200):
        told = subprocess.run(
            ["ldd", *objects[i : i + 200]], capture_output=True, text=True, check=False
        ).stdout
        found |= {Path(path) for path in re.findall(r"(?:=> |^\s)(/\S+) \(0x", told, re.MULTILINE)}
    beside = {library.parent / name for library in found if library.name == "libc.so.6" for name in LOADED}
    return {
        path for path in found | {each for each in beside if each.is_file()} if folder not in path.parents
    }


def argv_in(root: Path, argv: list[str]) -> list[str]:
    """Return how to run a command as nobody with a folder as its root; see can_make_root()."""
    script = 'mount --bind /proc "$0/proc" && exec chroot --userspec=65534:65534 --groups= "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(root), *argv]


def can_make_root() -> bool:
    """Whether this process may."""
    if os.getuid() != 0 or not all(map(shutil.which, ("unshare", "chroot", "mount", "ldd"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0

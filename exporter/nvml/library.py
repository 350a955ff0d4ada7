"""Which file the driver's library was loaded from, and whether another one lies there now.

Why it exists: the binding loads the library once per process and never lets go of it, so after a driver upgrade in
place only a new process can speak to the new driver.
"""

from dataclasses import dataclass
from pathlib import Path

SONAME = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A file as it was when it was loaded."""

    path: Path
    inode: int
    modified_ns: int


def loaded_library(maps: Path = Path("/proc/self/maps")) -> LibraryFile | None:
    """Return the library that this process has mapped; None = none, or the system does not tell."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "libnvidia-ml.so" in fields[5]:
            return _described(Path(fields[5].removesuffix(" (deleted)")), int(fields[4]))
    return None


def was_replaced(loaded: LibraryFile) -> bool:
    """Whether the name now leads to another file; False while there is none, because an upgrade is then under way."""
    by_name = loaded.path.with_name(SONAME)
    try:
        now = (by_name if by_name.exists() else loaded.path).stat()
    except OSError:
        return False
    return (now.st_ino, now.st_mtime_ns) != (loaded.inode, loaded.modified_ns)


def _described(path: Path, inode: int) -> LibraryFile:
    try:
        status = path.stat()
    except OSError:
        return LibraryFile(path, inode, 0)
    return LibraryFile(path, inode, status.st_mtime_ns)

"""Whether a file is on a network file system, where SQLite's locks and its shared memory do not hold.

Two machines that write one SQLite file in WAL mode over NFS or CIFS each believe that they are alone: a claim would
protect nothing. Linux says what is mounted where in ``/proc/self/mountinfo``; a system that has no such file is
believed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sagaspan.exceptions import StoreUnavailable

MOUNTINFO: Final = Path("/proc/self/mountinfo")
VARIABLE: Final = "SAGASPAN_NETWORK_FILES"

NETWORK: Final = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "gfs", "gfs2", "glusterfs", "gpfs",
     "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "prl_fs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf",
     "virtiofs", "vmhgfs", "wekafs"}
)  # fmt: skip
_NETWORK_FUSE: Final = frozenset(
    {"sshfs", "s3fs", "gcsfuse", "rclone", "glusterfs", "davfs", "davfs2", "ceph", "ceph-fuse", "goofys", "blobfuse",
     "blobfuse2", "mount-s3", "juicefs", "JuiceFS", "curlftpfs", "smbnetfs", "nfs", "seaweedfs", "moosefs", "mfs",
     "lizardfs", "vmhgfs-fuse", "grpcfuse", "osxfs", "portal", "weed", "cvmfs2", "objectivefs", "gvfsd-fuse", "hdfs"}
)  # fmt: skip
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def refuse_network_files(path: Path, mountinfo: Path = MOUNTINFO) -> None:
    """Raise ``StoreUnavailable`` if ``path`` is on a network file system, unless the environment allows it."""
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(path, text)
    if kind is None or not is_network(kind, text) or os.environ.get(VARIABLE) == "allow":
        return
    raise StoreUnavailable(
        f"the ledger {path} is on a network file system ({kind}), where two machines do not see each other's locks; "
        f"use a local disk or a database server ({VARIABLE}=allow overrides, if only one machine ever opens it)"
    )


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """The type of the file system of the absolute ``path``; None if ``mountinfo`` does not say."""
    found, length = None, -1
    for line in mountinfo.splitlines():
        place, separator, source = line.partition(" - ")
        fields = place.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        # Of two mounts at one place the later one covers the earlier.
        if len(point) >= length and _is_below(str(path), point):
            found, length = source.split(" ")[0], len(point)
    return found


def is_network(kind: str, mountinfo: str = "") -> bool:
    """Whether a type of file system is shared with other machines.

    Where the root itself is ``9p`` or ``virtiofs`` the machine is a sandbox (gVisor, Kata), and that is its own disk.
    """
    if kind in ("9p", "virtiofs"):
        return file_system_of(Path("/"), mountinfo) != kind
    family, _, helper = kind.partition(".")
    return kind in NETWORK or (family in ("fuse", "fuseblk") and helper in _NETWORK_FUSE)


def _is_below(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(f"{point}/")

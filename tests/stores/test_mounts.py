"""SQLite on a network file system is refused: two machines would not see each other's locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagaspan import StoreUnavailable
from sagaspan.stores._mounts import file_system_of, is_network
from sagaspan.stores.sqlite import SqliteStore

SERVER = """\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 28 0:27 / /tmp rw,nosuid,nodev shared:16 - tmpfs tmpfs rw,size=16333308k,nr_inodes=1048576,inode64
96 28 0:53 / /home rw,relatime shared:52 - nfs4 filer:/export/home rw,vers=4.2,rsize=1048576,hard,proto=tcp,sec=sys
101 96 0:61 / /home/ann/scratch rw,relatime shared:60 - xfs /dev/sdb1 rw,attr2,inode64,noquota
104 28 0:64 / /mnt/old rw,relatime shared:63 - nfs filer:/old rw,vers=3,addr=10.0.0.2
107 28 0:67 / /mnt/office rw,relatime shared:66 - cifs //files/office rw,vers=3.1.1,cache=strict
110 28 0:70 / /mnt/box rw,nosuid,nodev,relatime shared:69 - fuse.sshfs ann@box:/srv rw,user_id=1000,group_id=1000
113 28 0:73 / /mnt/with\\040space rw,relatime shared:72 - smb3 //files/x rw
116 28 0:76 / /mnt/usb rw,nosuid,nodev,relatime shared:75 - fuseblk /dev/sdc1 rw,user_id=0,group_id=0
119 28 0:79 / /mnt/twice rw,relatime shared:78 - ext4 /dev/sdd1 rw
122 28 0:82 / /mnt/twice rw,relatime shared:81 - nfs4 filer:/twice rw
"""
CONTAINER = """\
1553 1240 0:176 / / rw,relatime master:472 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/7K,upperdir=/u
1554 1553 0:179 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1563 1553 259:2 /var/lib/docker/volumes/state/_data /data rw,relatime master:1 - ext4 /dev/nvme0n1p2 rw
1566 1553 0:49 / /efs rw,relatime master:300 - nfs4 127.0.0.1:/ rw,vers=4.1,noresvport,port=20449
"""
WSL = """\
74 62 8:32 / / rw,relatime - ext4 /dev/sdc rw,discard,errors=remount-ro,data=ordered
99 74 0:66 / /mnt/c rw,noatime - 9p C:\\134 rw,dirsync,aname=drvfs;path=C:\\;uid=1000;gid=1000,trans=fd,rfd=5,wfd=5
"""
GVISOR = """\
1 0 0:12 / / rw - 9p none rw,trans=fd,rfdno=4,wfdno=4,aname=/,dfltuid=4294967294,cache=remote_revalidating
2 1 0:13 / /proc rw - proc none rw
"""


@pytest.mark.parametrize(
    ("mountinfo", "path", "kind", "network"),
    [
        (SERVER, "/var/lib/ledger.db", "ext4", False),
        (SERVER, "/tmp/ledger.db", "tmpfs", False),
        (SERVER, "/home/ann/.sagaspan/ledger.db", "nfs4", True),
        (SERVER, "/homestead/ledger.db", "ext4", False),
        (SERVER, "/home/ann/scratch/ledger.db", "xfs", False),
        (SERVER, "/mnt/old/ledger.db", "nfs", True),
        (SERVER, "/mnt/office/ledger.db", "cifs", True),
        (SERVER, "/mnt/box/ledger.db", "fuse.sshfs", True),
        (SERVER, "/mnt/with space/ledger.db", "smb3", True),
        (SERVER, "/mnt/usb/ledger.db", "fuseblk", False),
        (SERVER, "/mnt/twice/ledger.db", "nfs4", True),
        (CONTAINER, "/app/ledger.db", "overlay", False),
        (CONTAINER, "/data/ledger.db", "ext4", False),
        (CONTAINER, "/efs/ledger.db", "nfs4", True),
        (WSL, "/home/ann/ledger.db", "ext4", False),
        (WSL, "/mnt/c/Users/ann/ledger.db", "9p", True),
        (GVISOR, "/app/ledger.db", "9p", False),
        ("", "/ledger.db", None, False),
        ("not a table\n1 2 3 - \n", "/ledger.db", None, False),
    ],
)
def test_what_a_path_is_on(mountinfo: str, path: str, kind: str | None, network: bool) -> None:
    """The deepest and latest mount decides; a sandbox that is all 9p is its own disk, a drive of the host is not."""
    assert file_system_of(Path(path), mountinfo) == kind
    assert (kind is not None and is_network(kind, mountinfo)) is network


def test_this_machine_can_be_read() -> None:
    """The running kernel's own table says what its root is."""
    table = Path("/proc/self/mountinfo")
    if not table.exists():
        pytest.skip("needs /proc")
    assert file_system_of(Path("/"), table.read_text())


def test_a_network_file_system_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file nor a folder is made there; a variable of the environment overrides."""
    table = tmp_path / "mountinfo"
    table.write_text(f"28 1 259:2 / / rw - ext4 /dev/sda rw\n96 28 0:53 / {tmp_path} rw - nfs4 filer:/x rw\n")
    path = tmp_path / "new" / "ledger.db"
    with pytest.raises(StoreUnavailable, match=r"on a network file system \(nfs4\).*SAGASPAN_NETWORK_FILES=allow"):
        SqliteStore(path, mountinfo=table).list_runs()
    assert not path.parent.exists()
    monkeypatch.setenv("SAGASPAN_NETWORK_FILES", "allow")
    assert SqliteStore(path, mountinfo=table).list_runs() == []


def test_a_system_without_the_table_is_believed(tmp_path: Path) -> None:
    """Where no ``/proc`` is, nothing can be refused."""
    assert SqliteStore(tmp_path / "ledger.db", mountinfo=tmp_path / "none").list_runs() == []

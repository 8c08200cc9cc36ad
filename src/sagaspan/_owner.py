"""Who holds a record, and the proof that a holder is dead (rule book (a) 4).

A process is named by boot id, pid-namespace inode, pid, start time and a random part. On the same boot and in the
same pid namespace, a pid that is gone or that started at another time proves death at once, and one that is there
proves life; of a process elsewhere (another host or container, or a system without ``/proc``) nothing is proved, and
its lease decides (``sagaspan.ledger.judgement``). Within this process a holder is a token that is dropped when its
work ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from sagaspan import _fork as fork

NOBODY = "nobody"
"""The owner of what was given back: anybody may go on with it."""

_SEPARATOR = ":"
_alive: dict[str, int] = {}  # how often each token is held
_role: str | None = None  # the process that this one plays
_played: dict[str, bool] = {}  # the processes whose death is provable that this one plays or played: which are alive
_names: dict[int, str] = {}
_lock = fork.new_lock()


class Proof(StrEnum):
    """What is certain about a holder, without asking any clock."""

    ALIVE = "alive"
    DEAD = "dead"
    NONE = "none"


def this_process() -> str:
    """The name of this process as a holder of records."""
    return _name(os.getpid()) if _role is None else _role


class Role:
    """Another process that this one plays, for ``sagaspan.testing``: several in one, one at a time.

    ``where`` it is: ``"here"``, in another ``"container"`` on this host, or on another ``"machine"``. Only of one that
    is here others can prove that it lives or is dead.
    """

    def __init__(self, where: str = "here") -> None:
        boot, namespace, pid, start, _ = _name(os.getpid()).split(_SEPARATOR)
        own = secrets.token_hex(4)
        if where == "machine":
            boot = f"boot-{own}"
        elif where == "container":
            namespace = f"container-{own}"
        # Our pid with another start: for a real process that looks, it is dead.
        self.name = _SEPARATOR.join((boot, namespace, pid, start and "0", own))
        self._holds: dict[str, int] = {}
        if where == "here":
            _played[self.name] = True

    @contextlib.contextmanager
    def played(self) -> Iterator[None]:
        """This process is that one within the block."""
        global _role, _alive
        before = _role, _alive
        _role, _alive = self.name, self._holds
        try:
            yield
        finally:
            _role, _alive = before

    def end(self) -> None:
        """It is dead from here on."""
        self._holds.clear()
        if self.name in _played:
            _played[self.name] = False


def is_played() -> bool:
    """Whether this process plays another one."""
    return _role is not None


def names_a_process(actor: str) -> bool:
    """Whether who did something is a process, and not a person."""
    return actor == NOBODY or _parts(actor) is not None


def is_self(owner: str) -> bool:
    """Whether ``owner`` is this process."""
    return owner == this_process()


def run_token(store_url: str, namespace: str, run_id: str) -> str:
    """What a process holds while it is inside a run."""
    return f"run:{(store_url, namespace, run_id)}"


def hold(token: str) -> None:
    """This process works on ``token`` (a call's id, or a ``run_token``) until as many ``drop``s."""
    with _lock:
        _alive[token] = _alive.get(token, 0) + 1


def hold_new(token: str) -> bool:
    """As ``hold``, unless this process works on ``token`` already (then False)."""
    with _lock:
        if token in _alive:
            return False
        _alive[token] = 1
        return True


def held(kind: str) -> frozenset[str]:
    """The tokens that this process holds and that begin with ``kind``."""
    with _lock:
        return frozenset(token for token in list(_alive) if token.startswith(kind))


def drop(token: str) -> None:
    """This process's work on ``token`` has ended, however it ended."""
    with _lock:
        held = _alive.get(token, 0)
        if held > 1:
            _alive[token] = held - 1
        else:  # in one step: a Ctrl-C does not take it from who holds it beside us
            _alive.pop(token, None)


class Work:
    """What this process does on ``token`` once: it may be said to be over more than once, and by whoever comes last.

    It begins and ends in one step with what it remembers of that, whenever a Ctrl-C comes: one that was interrupted
    when it was to end goes on, and can be ended again.
    """

    __slots__ = ("_goes_on", "token")

    def __init__(self, token: str) -> None:
        self.token = token
        self._goes_on = False

    def begin(self) -> None:
        """Hold the token until the ``end``."""
        with _lock:
            count = _alive.get(self.token, 0)
            _alive[self.token] = count + 1
            self._goes_on = True

    def end(self) -> None:
        """It is over, or never began."""
        with _lock:
            count = _alive.get(self.token, 0) if self._goes_on else 0
            if count > 1:
                _alive[self.token] = count - 1
            elif count:
                del _alive[self.token]
            self._goes_on = False


def holding() -> bool:
    """Whether this process works on anything."""
    return bool(_alive)


def provably_dead(owner: str, token: str) -> bool:
    """Whether the holder ``owner`` of ``token`` is certain to write no more; False is no proof of life."""
    return proof(owner, token) is Proof.DEAD


def proof(owner: str, token: str) -> Proof:
    """Whether the holder ``owner`` of ``token`` is certain to live, or to write no more."""
    if is_self(owner):
        return Proof.ALIVE if token in _alive else Proof.DEAD
    if owner == NOBODY:
        return Proof.DEAD
    if owner in _played:
        return Proof.ALIVE if _played[owner] else Proof.DEAD
    mine, theirs = _parts(this_process()), _parts(owner)
    if mine is None or theirs is None or theirs[:2] != mine[:2]:
        return Proof.NONE
    try:
        return Proof.ALIVE if _lives(int(theirs[2]), theirs[3]) else Proof.DEAD
    except OSError:  # out of file descriptors, say: not being able to look is no proof of death
        return Proof.ALIVE


def same_boot(owner: str) -> bool:
    """Whether ``owner`` is of this boot of this machine, so that its monotonic clock is ours."""
    mine, theirs = this_process().split(_SEPARATOR), owner.split(_SEPARATOR)
    return len(theirs) == len(mine) and bool(mine[0]) and theirs[0] == mine[0]


def _lives(pid: int, start: str) -> bool:
    stat = _read(f"/proc/{pid}/stat")
    if stat:
        return _started(stat) == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True  # it is there, and only hidden from us (hidepid, or of another user)


def _forget() -> None:
    """A forked child works on nothing of its parent's."""
    global _role
    _alive.clear()
    _role = None


def _name(pid: int) -> str:
    # ``setdefault``: threads that begin at once must not each have a name of their own, which nobody goes by later.
    return _names.get(pid) or _names.setdefault(pid, _new_name(pid))


def _new_name(pid: int) -> str:
    try:
        boot, namespace, start = _boot_id(), _pid_namespace(), _start_time(pid)
    except OSError:
        boot = namespace = start = ""  # nobody can prove us dead then
    return _SEPARATOR.join((boot, namespace, str(pid), start, secrets.token_hex(4)))


def _parts(owner: str) -> tuple[str, str, str, str] | None:
    parts = owner.split(_SEPARATOR)
    if len(parts) != 5 or not all(parts) or not parts[2].isdigit():
        return None
    return parts[0], parts[1], parts[2], parts[3]


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which ``pid`` started; empty if it is gone or a zombie (it writes no more)."""
    return _started(_read(f"/proc/{pid}/stat"))


def _started(stat: str) -> str:
    fields = stat.rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


fork.hooks(in_child=_forget)


def os_user() -> str:
    """The user as whom the operating system runs this process, whatever the environment says."""
    try:
        import pwd
    except ImportError:  # Windows, which knows it itself
        return _login_name()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user has no name
        return f"uid {os.getuid()}"


def os_groups() -> tuple[str, ...]:
    """The names of the groups of this process."""
    try:
        import grp
    except ImportError:
        return ()
    found = set()
    for number in {os.getegid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            found.add(grp.getgrgid(number).gr_name)
    return tuple(sorted(found))


def _login_name() -> str:
    try:
        return os.getlogin()
    except OSError:
        return "unknown"

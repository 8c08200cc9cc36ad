"""A terminal with a program on it, as the person who sits before it sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from multiprocessing import connection

import pyte


class Terminal:
    """A terminal with the program on it, as a person sees it."""

    def __init__(self, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.written = ""

    @property
    def shown(self) -> str:
        """What stands on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, words: str, *, at_the_end: bool = False) -> None:
        """Wait until the screen shows ``words``, as the last of all that stands there if they are to."""
        for _ in range(300):
            if self.shown.rstrip().endswith(words) if at_the_end else words in self.shown:
                return
            self.read(0.1)
        raise AssertionError(f"{words!r} is not shown:\n{self.shown}")

    def read(self, seconds: float) -> None:
        """Take what the program writes, if it writes within ``seconds``; ``written`` is all of it."""
        if connection.wait([self._master], seconds):
            data = os.read(self._master, 65536)
            self.written += data.decode(errors="replace")
            self._stream.feed(data)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """End the program."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)

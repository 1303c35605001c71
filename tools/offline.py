"""Runs a command with the network cut off: `tools/offline.py make test`.

The command gets a network of its own in which nothing but the loopback is there (torchrun and Ray need that). Where the system allows no such
thing this says so and fails, or, with --if-possible, says so and runs the command as it is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, UP = 0x8913, 0x8914, 0x1
CUT = ("unshare", "--map-root-user", "--net")


def raise_loopback() -> None:
    """Brings up `lo`, as `ip link set lo up` does where that is installed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | UP))


def why_not() -> str:
    """Why the network cannot be cut off here; empty if it can."""
    if shutil.which(CUT[0]) is None:
        return "there is no unshare (util-linux)"
    tried = subprocess.run([*CUT, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"unshare ends with {tried.returncode}"


def main(words: list[str]) -> int:
    """Replaces this process by the command."""
    if words[:1] == ["--inside"]:
        raise_loopback()
        others = [name for _, name in socket.if_nameindex() if name != "lo"]
        print(f"network cut off: {', '.join(['lo', *others])} only", file=sys.stderr, flush=True)
        os.environ["HEADCOUNT_NETWORK_IS_CUT"] = "1"
        os.execvp(words[1], words[1:])
    if_possible = words[:1] == ["--if-possible"]
    command = words[1:] if if_possible else words
    if not command:
        print("usage: offline.py [--if-possible] COMMAND …", file=sys.stderr)
        return 2
    reason = why_not()
    if not reason:
        os.execvp(CUT[0], [*CUT, sys.executable, __file__, "--inside", *command])
    print(f"the network cannot be cut off here: {reason}", file=sys.stderr, flush=True)
    if if_possible:
        os.execvp(command[0], command)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

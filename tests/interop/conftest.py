"""`runcap serve` for the tests: on a free port, stopped by SIGTERM, and looked at afterwards.

RUNCAP_BIN is the binary that is tested.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

# The suites call `python`, which a distribution need not have: this environment has it.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@dataclass
class Server:
    """A server that runs: where it listens, what it wants to hear, what it serves."""

    url: str
    token: str
    workspace: Path
    log: Path


@pytest.fixture(scope="session")
def runcap():
    """The binary, by a path that holds in every directory."""
    return str(Path(os.environ["RUNCAP_BIN"]).resolve(strict=True))


@pytest.fixture(scope="session")
def server(runcap, tmp_path_factory):
    """A server whose workspace is a directory of its own."""
    yield from serve(runcap, tmp_path_factory.mktemp("workspace"), tmp_path_factory)


@pytest.fixture(scope="session")
def root_server(runcap, tmp_path_factory):
    """A server that serves all of this machine's files."""
    yield from serve(runcap, Path("/"), tmp_path_factory)


def serve(runcap, workspace, tmp_path_factory):
    """Yields a server; then stops it and checks that it ended well and left nothing."""
    token, mark = secrets.token_hex(16), f"RUNCAP_INTEROP={secrets.token_hex(16)}"
    log = tmp_path_factory.mktemp("log") / "server.log"
    name, _, value = mark.partition("=")
    argv = [runcap, "serve", "--listen", "127.0.0.1:0", "--workspace", str(workspace)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            argv,
            env={**os.environ, "RUNCAP_TOKEN": token, name: value},
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield Server(listening(process, log), token, workspace, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=6) == 0, log.read_text()
        assert_gone(mark)
        assert token not in log.read_text() and "panicked" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def listening(process, log):
    """The address that the server says it listens on."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        said = re.search(r"listening on (http://\S+)", log.read_text())
        if said:
            return said[1]
        assert process.poll() is None, f"it ended with {process.returncode}: {log.read_text()}"
        time.sleep(0.01)
    raise AssertionError(f"it does not listen: {log.read_text()}")


def assert_gone(mark):
    """No process has this variable in its environment, at the latest in five seconds."""
    deadline = time.monotonic() + 5
    while left := [path.parent.name for path in environments() if has(path, mark)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def environments():
    """The environment of each process."""
    return Path("/proc").glob("[0-9]*/environ")


def has(environ, mark):
    """Whether the variable stands in the environment of a process, which may end meanwhile."""
    try:
        return mark.encode() in environ.read_bytes().split(b"\0")
    except OSError:
        return False

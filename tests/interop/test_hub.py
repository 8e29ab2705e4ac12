"""huggingface_hub's own Sandbox client, unmodified, against the sandbox dialect.

Sandbox.create would rent a machine and start a server there. Here the server is started already,
and the client's transport gets its address and its token.
"""

import contextlib
import hashlib
import itertools
import json
import os
import random
import secrets
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from huggingface_hub._sandbox import FileEntry
from huggingface_hub.errors import SandboxCommandError, SandboxError

from conftest import assert_gone, environments, has, serve
from hub_backend import connect

KIB = 1024
MIB = 1024 * KIB
# The client moves what is larger as ranges of 1 MiB, on 16 connections.
WHOLE_MAX = 2 * MIB
# As many commands as the client has connections.
AT_ONCE = 18


@pytest.fixture(scope="module")
def sandbox(server):
    """A client that knows the token."""
    with connect(server.url, server.token) as sandbox:
        yield sandbox


@pytest.fixture
def directory(server):
    """A directory in the workspace, for one test: its name, and where it stands."""
    name = f"hub-{secrets.token_hex(8)}"
    (server.workspace / name).mkdir()
    return name, server.workspace / name


@pytest.fixture
def mark():
    """A variable by which /proc tells the processes of one test from all others."""
    return f"RUNCAP_INTEROP_TEST={secrets.token_hex(16)}"


def variables(mark):
    """The environment of a command that is marked."""
    name, _, value = mark.partition("=")
    return {name: value}


def is_marked(pid, mark):
    """Whether a process is one of the marked."""
    return has(Path(f"/proc/{pid}/environ"), mark)


def marked(mark):
    """How many processes are marked."""
    return sum(has(path, mark) for path in environments())


def wait_until(what, holds):
    """The first result that counts, which comes within ten seconds."""
    deadline = time.monotonic() + 10
    while not (seen := holds()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)
    return seen


def python(script):
    """A command in this environment's own Python."""
    return ["python", "-c", script]


def refusal(call, *args, **more):
    """Status and text of the error that the client raises."""
    with pytest.raises(SandboxError) as raised:
        call(*args, **more)
    return raised.value.status_code, str(raised.value)


def ended(result):
    """How a command ended."""
    return result.exit_code, result.signal, result.timed_out


# Commands.


def test_a_text_is_for_the_shell_and_a_list_is_not(sandbox):
    assert sandbox.run("printf '%s|' a 'b c' $((6 * 7))").stdout == "a|b c|42|"
    assert sandbox.run("echo $0 | tr a-z A-Z", shell=True).stdout == "/BIN/SH\n"
    words = ["a b", "$HOME", "ü", "", "'\"", "a\nb", "*"]
    answer = sandbox.run(["printf", "%s|", *words], shell=False)
    assert answer.stdout == "".join(word + "|" for word in words)


def test_variables_are_set_over_those_of_the_server(sandbox):
    given = {"EMPTY": "", "ODD": "a=b\n'ü' $PATH", "HOME": "/elsewhere"}
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    seen = json.loads(sandbox.run(python(script), env=given).stdout)
    assert {key: seen[key] for key in given} == given
    assert seen["PATH"] == os.environ["PATH"]
    assert "ODD" not in json.loads(sandbox.run(python(script)).stdout)


def test_a_command_starts_in_the_workspace_or_below_it(sandbox, server, directory):
    name, where = directory
    workspace = server.workspace.resolve()
    assert sandbox.run("pwd -P").stdout == f"{workspace}\n"
    for given in [name, f"/{name}", f"./{name}/../{name}/"]:
        assert sandbox.run("pwd -P", cwd=given).stdout == f"{where.resolve()}\n"
    for given in ["../../..", f"{name}/../../..", "missing"]:
        status, text = refusal(sandbox.run, "true", cwd=given)
        assert 400 <= status < 500 and given in text


def test_a_command_of_the_whole_machine_starts_where_it_is_told(root_server, tmp_path):
    with connect(root_server.url, root_server.token) as sandbox:
        assert sandbox.run("pwd -P", cwd=str(tmp_path)).stdout == f"{tmp_path.resolve()}\n"


@pytest.mark.parametrize("text", ["", "in\n", "ü\0\u2028\r\n", "0123456789" * (MIB // 2)])
def test_stdin_is_all_of_the_text(sandbox, text):
    # The longest is more than any pipe holds, and comes back while it still goes in.
    assert sandbox.run("cat; printf end", stdin=text, timeout=30).stdout == text + "end"


def test_stdin_is_empty_without_a_text_and_need_not_be_read(sandbox):
    assert sandbox.run("cat; echo end", timeout=30).stdout == "end\n"
    assert ended(sandbox.run("exec <&-; exit 0", stdin="x" * (3 * MIB))) == (0, None, False)


@pytest.mark.parametrize("code", [0, 1, 2, 126, 127, 255])
def test_the_exit_code_is_the_command_s_own(sandbox, code):
    answer = sandbox.run(f"echo out; echo wrong >&2; exit {code}", check=False)
    assert ended(answer) == (code, None, False) and answer.ok is (code == 0)
    assert (answer.stdout, answer.stderr) == ("out\n", "wrong\n")


@pytest.mark.parametrize("number", [1, 9, 15])
def test_a_signal_is_told_by_its_number(sandbox, number):
    answer = sandbox.run(f"echo out; kill -{number} $$", check=False)
    assert ended(answer) == (None, number, False) and answer.stdout == "out\n"


def test_what_fails_is_raised_with_all_that_it_wrote(sandbox):
    with pytest.raises(SandboxCommandError, match="wrong") as raised:
        sandbox.run("echo out; echo wrong >&2; exit 3")
    assert ended(raised.value.result) == (3, None, False)
    assert raised.value.result.stdout == "out\n"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; ", "trap 'exit 0' TERM; "])
def test_the_deadline_keeps_what_was_written_and_ends_all_that_was_started(sandbox, mark, trap):
    # A child in a session of its own is no member of the group any more.
    script = (
        f"{trap}echo out; echo wrong >&2; sleep 1000 & "
        "setsid sh -c 'echo session; exec sleep 1000' & "
        "while :; do sleep 0.1; done"
    )
    with pytest.raises(SandboxCommandError) as raised:
        sandbox.run(script, env=variables(mark), timeout=2)
    result = raised.value.result
    assert result.timed_out and 2000 <= result.duration_ms < 20000
    assert sorted(result.stdout.split()) == ["out", "session"]
    # A shell that goes on may add that its child was terminated.
    assert result.stderr.startswith("wrong\n")
    assert_gone(mark)


@pytest.mark.parametrize("timeout", [0, -3, 0.05])
def test_next_to_no_time_is_a_timeout_too(sandbox, timeout):
    assert sandbox.run("sleep 1000", timeout=timeout, check=False).timed_out


def test_a_process_that_goes_on_does_not_hold_up_the_answer(sandbox, directory):
    name, where = directory
    script = "(while [ ! -e go ]; do sleep 0.05; done; echo late; echo late >late) & echo started"
    # It goes on when the answer has come, so an answer that waited for it would never come.
    answer = sandbox.run(script, cwd=name, timeout=30)
    assert ended(answer) == (0, None, False) and answer.stdout == "started\n"
    (where / "go").touch()
    wait_until("it goes on after the answer", lambda: (where / "late").exists())


def test_a_program_that_is_missing_is_named(sandbox):
    status, text = refusal(sandbox.run, ["no-such-program", "x"])
    assert status == 400 and "failed to spawn 'no-such-program': " in text


# Output as it is written.


def test_output_is_there_while_the_command_runs_and_in_its_order(sandbox, directory):
    # Each step waits for a file that is made when the output before it has come.
    name, where = directory
    step = "while [ ! -e {0} ]; do sleep 0.02; done; "
    script = "printf 0; " + "".join(
        step.format(number) + f"printf {number + 1} >&{1 + number % 2}; " for number in range(6)
    )
    seen = []

    def take(stream):
        def note(text):
            seen.append((stream, text))
            (where / text).touch()

        return note

    streams = {"on_stdout": take("out"), "on_stderr": take("err")}
    answer = sandbox.run(script, cwd=name, timeout=30, **streams)
    expected = ["out", "out", "err", "out", "err", "out", "err"]
    assert seen == [(stream, str(number)) for number, stream in enumerate(expected)]
    assert (answer.stdout, answer.stderr) == ("0135", "246")


def test_the_events_begin_with_start_and_end_with_exit(sandbox, directory, mark):
    name, where = directory
    script = "echo out; while [ ! -e go ]; do sleep 0.02; done; echo wrong >&2; exit 3"
    body = {"cmd": script, "cwd": name, "env": variables(mark), "timeout": 30}
    with sandbox._stream("POST", "/exec", json=body) as answer:
        assert answer.headers["Content-Type"].split(";")[0] == "application/x-ndjson"
        assert answer.headers["X-Accel-Buffering"] == "no"
        lines = answer.iter_lines()
        start = json.loads(next(lines))
        assert start["event"] == "start"
        wait_until("the pid is that of the command", lambda: is_marked(start["pid"], mark))
        output = [json.loads(next(lines))]
        # Not before: two streams have no order but that of their events.
        (where / "go").touch()
        *rest, end = [json.loads(line) for line in lines]
    output = [(event["event"], event["data"]) for event in output + rest]
    assert output == [("stdout", "out\n"), ("stderr", "wrong\n")]
    expected = {"event": "exit", "exit_code": 3, "signal": None, "timed_out": False}
    assert {key: end[key] for key in expected} == expected and end["duration_ms"] < 30000


def test_as_many_as_the_client_has_connections_get_what_is_theirs(sandbox, directory):
    # None writes before all run, so none of them waited for another one.
    name, _ = directory

    def count(number):
        script = (
            f"touch {number}; while [ $(ls | wc -l) -lt {AT_ONCE} ]; do sleep 0.05; done; "
            f"seq {number} {AT_ONCE} 540000 & seq -f 'e%.0f' {number} {AT_ONCE} 540000 >&2; wait"
        )
        answer = sandbox.run(script, cwd=name, timeout=50)
        numbers = range(number, 540001, AT_ONCE)
        assert answer.stdout == "".join(f"{n}\n" for n in numbers)
        assert answer.stderr == "".join(f"e{n}\n" for n in numbers)
        return len(answer.stdout)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert min(pool.map(count, range(1, AT_ONCE + 1))) > 200_000


def written_bytewise(stdout, stderr):
    """A command that writes each byte by itself, to one stream after the other."""
    return python(
        "import itertools, os\n"
        f"for one, other in itertools.zip_longest({stdout!r}, {stderr!r}):\n"
        "    if one is not None: os.write(1, bytes([one]))\n"
        "    if other is not None: os.write(2, bytes([other]))\n"
    )


def test_a_character_that_is_written_in_parts_arrives_whole(sandbox):
    texts = "€😀é\u2028x" * 99, "ü\u0085𝄞" * 120
    answer = sandbox.run(written_bytewise(*(text.encode() for text in texts)))
    assert (answer.stdout, answer.stderr) == texts


def test_what_is_not_utf_8_is_replaced_and_nothing_else_is_lost(sandbox):
    every = bytes(range(256)) + b"\xe2\x82A\xf0\x9f\x98\xed\xa0\x80\xf4\x90\x80\x80\xc0\xaf"
    cut = "ü".encode() + b"\xf0\x9f\x98"
    answer = sandbox.run(written_bytewise(every, cut))
    assert answer.stdout == every.decode(errors="replace")
    assert answer.stderr == "ü\ufffd"


def test_line_separators_of_all_kinds_do_not_cut_an_event(sandbox):
    text = "a\u0085b\u2028c\u2029d\v\f\x1c\x1d\x1e\x1f\r\n\r\0\x7f\ufeff\ufffe"
    script = f"import os; os.write(1, {text.encode()!r}); os.write(2, {text.encode()!r})"
    answer = sandbox.run(python(script))
    assert (answer.stdout, answer.stderr) == (text, text)


def test_output_without_end_is_given_up_by_the_client_and_ended_by_the_server(sandbox, mark):
    with pytest.raises(SandboxError, match="capture_output=False"):
        sandbox.run("yes", env=variables(mark))
    assert_gone(mark)


def test_both_streams_are_endless_for_who_takes_them_as_they_come(sandbox):
    counts = {"o": 0, "e": 0}

    def take(letter):
        def count(text):
            assert text.count(letter) == len(text)
            counts[letter] += len(text)

        return count

    write = "head -c 100000000 /dev/zero | tr '\\0' "
    streams = {"on_stdout": take("o"), "on_stderr": take("e")}
    answer = sandbox.run(f"{write}o & {write}e >&2; wait", capture_output=False, **streams)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (0, "", "")
    assert counts == {"o": 100_000_000, "e": 100_000_000}


def test_a_reader_that_pauses_slows_the_command_and_misses_nothing(sandbox, directory):
    # While nobody reads, the command gets no further than what lies between them.
    name, where = directory
    written = 96 * MIB
    script = (
        "import os\n"
        f"for count in range({written // MIB}):\n"
        f"    for _ in range({MIB // (64 * KIB)}): os.write(1, b'x' * {64 * KIB})\n"
        "    open('progress', 'w').write(str(count + 1) + '\\n')\n"
    )
    received, stopped_at = 0, None

    def take(text):
        nonlocal received, stopped_at
        received += len(text)
        if stopped_at is None and received > MIB:
            stopped_at = standstill(where / "progress")

    answer = sandbox.run(python(script), cwd=name, on_stdout=take, capture_output=False)
    assert answer.ok and received == written
    assert stopped_at < 48, f"{stopped_at} MiB were written while 1 MiB was read"


def text_of(path):
    """What stands in a file, which need not be there yet."""
    return path.read_text() if path.exists() else ""


def standstill(path):
    """What stands in a file that has not changed for a second."""
    deadline = time.monotonic() + 30
    seen, since = None, time.monotonic()
    while time.monotonic() < since + 1:
        assert time.monotonic() < deadline, f"it goes on: {seen}"
        now = text_of(path)
        if now != seen or not now.endswith("\n"):
            seen, since = now, time.monotonic()
        time.sleep(0.02)
    return int(seen)


class Leave(Exception):
    """What a caller's own code raises."""


@pytest.mark.parametrize("goes_on", ["sleep 1000", "yes", "yes >&2", "trap '' TERM; sleep 1000"])
def test_a_client_that_leaves_ends_its_command(sandbox, mark, goes_on):
    def leave(text):
        raise Leave

    script = f"setsid sleep 1000 & sleep 1000 & echo started; {goes_on}"
    with pytest.raises(Leave):
        sandbox.run(script, env=variables(mark), on_stdout=leave)
    assert_gone(mark)
    assert sandbox.run("echo alive").stdout == "alive\n"


def test_a_client_that_leaves_a_silent_command_ends_it(sandbox, mark):
    body = {"cmd": ["sleep", "1000"], "env": variables(mark)}
    with sandbox._stream("POST", "/exec", json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["event"] == "start"
        wait_until("it runs", lambda: marked(mark))
    assert_gone(mark)


# Background processes.


def listed(sandbox, identity):
    """The process as the server lists it."""
    [seen] = [seen for seen in sandbox.processes() if seen.id == identity]
    return seen


def over(sandbox, identity):
    """The same, once it has ended."""
    wait_until("the process ends", lambda: not listed(sandbox, identity).running)
    return listed(sandbox, identity)


def test_a_background_process_is_listed_and_killed_once(sandbox, directory, mark):
    name, where = directory
    command = ["sh", "-c", "pwd -P >where; sleep 1000 & trap '' TERM; while :; do sleep 0.1; done"]
    process = sandbox.run(command, env=variables(mark), cwd=name, background=True)
    wait_until("its pid is true", lambda: is_marked(process.pid, mark))
    seen = listed(sandbox, process.id)
    assert (seen.pid, seen.cmd, seen.tag) == (process.pid, command, None)
    assert (seen.running, seen.exit_code) == (True, None)
    assert abs(time.time() * 1000 - seen.started_at_ms) < 60_000
    said = wait_until("it says where it is", lambda: text_of(where / "where"))
    assert said == f"{where.resolve()}\n"
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: process.kill(), range(8))) == 1
    assert_gone(mark)
    over(sandbox, process.id)
    assert process.kill() is False


def test_a_process_that_ended_by_itself_keeps_its_exit_code(sandbox):
    process = sandbox.run("exit 5", background=True)
    seen = over(sandbox, process.id)
    assert (seen.cmd, seen.exit_code) == ("exit 5", 5)
    assert process.kill() is False and listed(sandbox, process.id) == seen
    process = sandbox.run("kill -9 $$", background=True)
    assert over(sandbox, process.id).exit_code is None


def test_nobody_needs_to_read_what_a_background_process_writes(sandbox):
    process = sandbox.run("cat; seq 300000; seq 300000 >&2; exit 7", background=True)
    assert over(sandbox, process.id).exit_code == 7


@pytest.mark.parametrize("route", ["/processes", "/exec"])
def test_a_background_process_has_a_tag_and_is_ended_by_its_pid_too(sandbox, route):
    body = {"cmd": ["sleep", "1000"], "tag": "ü 1"}
    started = sandbox._request("POST", route, json={**body, "background": True}).json()
    assert started == {**body, "id": started["id"], "pid": started["pid"]}
    seen = listed(sandbox, started["id"])
    assert (seen.tag, seen.pid, seen.running) == ("ü 1", started["pid"], True)
    answer = sandbox._request("DELETE", f"/processes/{started['pid']}").json()
    assert answer["ok"] is True and answer["killed"] is True
    over(sandbox, started["id"])


def test_to_end_what_never_was_is_no_error(sandbox):
    answer = sandbox._request("DELETE", "/processes/p-999999999").json()
    assert answer == {"id": "p-999999999", "ok": True, "killed": False}


def test_a_background_process_outlives_the_client_that_started_it(server, mark):
    with connect(server.url, server.token) as first:
        process = first.run(["sleep", "1000"], env=variables(mark), background=True)
    with connect(server.url, server.token) as second:
        seen = listed(second, process.id)
        assert seen.running and is_marked(seen.pid, mark)
        assert seen.kill() is True
    assert_gone(mark)


def test_the_end_of_the_server_is_that_of_all_that_runs_in_the_background(
    runcap, tmp_path, tmp_path_factory, mark
):
    with contextlib.contextmanager(serve)(runcap, tmp_path, tmp_path_factory) as server:
        with connect(server.url, server.token) as sandbox:
            for script in [
                "exec sleep 1000",
                "trap '' TERM HUP INT; while :; do sleep 0.1; done",
                "setsid sh -c 'setsid sleep 1000 & exec sleep 1000' & wait",
                "yes",
            ]:
                sandbox.run(script, env=variables(mark), background=True)
            wait_until("all of them run", lambda: marked(mark) >= 6)
    assert not marked(mark)


# Files.


def content(size):
    """Bytes that are no other size's."""
    return random.Random(size).randbytes(size)


def digest(data):
    """What is shown of bytes that differ."""
    return len(data), hashlib.sha256(data).hexdigest()


SIZES = [0, 1, MIB - 1, MIB, MIB + 1, WHOLE_MAX - 1, WHOLE_MAX, WHOLE_MAX + 1, 37 * MIB + 13]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_goes_both_ways(sandbox, directory, tmp_path, size):
    name, where = directory
    data = content(size)
    (tmp_path / "sent").write_bytes(data)
    sandbox.files.write(f"{name}/written", data)
    sandbox.files.upload(tmp_path / "sent", f"{name}/new/deep/uploaded")
    for path in ["written", "new/deep/uploaded"]:
        assert digest((where / path).read_bytes()) == digest(data)
        assert sandbox.files.stat(f"{name}/{path}").size == size
        assert digest(sandbox.files.read(f"/{name}/{path}")) == digest(data)
        sandbox.files.download(f"{name}/{path}", tmp_path / "got")
        assert digest((tmp_path / "got").read_bytes()) == digest(data)
    assert [path.name for path in where.iterdir() if path.is_file()] == ["written"]


@pytest.mark.parametrize("size", [0, 1, WHOLE_MAX, WHOLE_MAX + 1, 5 * MIB + 1])
def test_a_shorter_file_has_no_tail_of_the_longer_one(sandbox, directory, size):
    name, where = directory
    for longer in [9 * MIB, 9 * MIB + 7]:
        sandbox.files.write(f"{name}/file", b"x" * longer)
        sandbox.files.write(f"{name}/file", content(size))
        assert digest((where / "file").read_bytes()) == digest(content(size))
        assert digest(sandbox.files.read(f"{name}/file")) == digest(content(size))


def test_clients_that_write_at_once_do_not_mix_their_files(server, directory):
    name, where = directory

    def write(number):
        with connect(server.url, server.token) as sandbox:
            sandbox.files.write(f"{name}/{number}", content(6 * MIB + number))
            return digest(sandbox.files.read(f"{name}/{number}"))

    with ThreadPoolExecutor(6) as pool:
        seen = list(pool.map(write, range(6)))
    assert seen == [digest(content(6 * MIB + number)) for number in range(6)]
    assert sorted(path.name for path in where.iterdir()) == [str(number) for number in range(6)]


@pytest.mark.parametrize("mode", ["600", "644", "755"])
@pytest.mark.parametrize("size", [9, 3 * MIB])
def test_a_file_has_the_mode_that_is_asked_for(sandbox, directory, mode, size):
    name, where = directory
    (where / "old").write_bytes(b"old")
    for path in ["old", "new"]:
        sandbox.files.write(f"{name}/{path}", content(size), mode=mode)
        assert sandbox.files.stat(f"{name}/{path}").mode == mode
        assert stat.S_IMODE((where / path).stat().st_mode) == int(mode, 8)


def test_a_script_that_is_written_can_be_run(sandbox, directory):
    name, _ = directory
    sandbox.files.write(f"{name}/bin/hi", "#!/bin/sh\necho hi ü\n", mode="755")
    assert sandbox.files.read_text(f"{name}/bin/hi") == "#!/bin/sh\necho hi ü\n"
    assert sandbox.run(["bin/hi"], cwd=name).stdout == "hi ü\n"


def test_a_long_list_is_whole_and_in_order(sandbox, directory):
    name, where = directory
    names = [f"{'aZ-ü'[number % 4]}{number}" for number in range(25_000)]
    for one in names:
        (where / one).touch()
    entries = sandbox.files.list(name)
    assert [entry.name for entry in entries] == sorted(names, key=os.fsencode)
    assert {(entry.type, entry.size) for entry in entries} == {("file", 0)}
    # The client followed the pages of the server.
    page = sandbox._request("GET", "/files/list", params={"path": name}).json()
    assert (len(page["entries"]), page["truncated"]) == (10_000, True)
    assert page["next"] == page["entries"][-1]["name"]


def kinds_of_entries(where):
    """One entry of each kind, and what the client is to see of it."""
    (where / "b").write_bytes(b"12345")
    (where / "B").write_bytes(b"")
    (where / "B").chmod(0o4755)
    (where / "open").mkdir()
    (where / "open").chmod(0o1777)
    (where / "to-open").symlink_to("open")
    (where / "to-nothing").symlink_to("nothing")
    os.mkfifo(where / "fifo")
    os.mknod(where / "socket", stat.S_IFSOCK | 0o600)
    os.utime(where / "b", ns=(1, 1_234_567_890_123_999_999))
    os.utime(where / "B", ns=(1, -1))
    return {
        "B": "file",
        "b": "file",
        "fifo": "file",
        "open": "dir",
        "socket": "file",
        "to-nothing": "symlink",
        "to-open": "symlink",
    }


def test_entries_are_what_they_are_and_links_are_not_followed(sandbox, directory):
    name, where = directory
    kinds = kinds_of_entries(where)
    expected = []
    for entry, kind in kinds.items():
        seen = (where / entry).lstat()
        mtime_ms, mode = seen.st_mtime_ns // 1_000_000, f"{stat.S_IMODE(seen.st_mode):o}"
        path = f"/{name}/{entry}"
        expected.append(FileEntry(entry, path, kind, seen.st_size, mtime_ms, mode))
    assert sandbox.files.list(name) == expected
    assert [sandbox.files.stat(entry.path) for entry in expected] == expected
    assert sandbox.files.stat(name).type == "dir"
    assert [sandbox.files.exists(entry.path) for entry in expected] == [True] * len(expected)
    assert not sandbox.files.exists(f"{name}/nothing")
    assert sandbox.files.list(f"{name}/open") == []


@pytest.mark.parametrize("special", ["fifo", "socket"])
def test_what_is_no_file_is_refused_at_once(sandbox, directory, special, tmp_path):
    name, where = directory
    kinds_of_entries(where)
    status, _ = refusal(sandbox.files.download, f"{name}/{special}", tmp_path / "got")
    assert 400 <= status < 500 and not (tmp_path / "got").exists()


def test_directories_are_made_with_their_parents(sandbox, directory):
    name, where = directory
    for _ in range(2):
        sandbox.files.mkdir(f"{name}/a/b/c")
    assert (where / "a/b/c").is_dir()
    (where / "file").touch()
    assert refusal(sandbox.files.mkdir, f"{name}/file")[0] == 409


def test_what_is_deleted_is_gone_and_nothing_behind_a_link_is(sandbox, directory, tmp_path):
    name, where = directory
    (tmp_path / "kept").write_text("kept")
    (where / "empty").mkdir()
    (where / "full/deep/er").mkdir(parents=True)
    (where / "full/deep/file").touch()
    (where / "full/link").symlink_to(tmp_path)
    (where / "link").symlink_to(tmp_path / "kept")
    status, text = refusal(sandbox.files.delete, f"{name}/full")
    assert status == 400 and (where / "full/deep/file").exists(), text
    sandbox.files.delete(f"{name}/empty")
    sandbox.files.delete(f"{name}/link")
    sandbox.files.delete(f"{name}/full/deep/file")
    sandbox.files.delete(f"{name}/full", recursive=True)
    assert list(where.iterdir()) == [] and (tmp_path / "kept").read_text() == "kept"
    assert refusal(sandbox.files.delete, f"{name}/full")[0] == 404
    assert refusal(sandbox.files.delete, "/", recursive=True)[0] == 400 and where.exists()


def test_odd_names_come_back_as_they_were_sent(sandbox, directory):
    name, where = directory
    names = ["ünï", "a b", "+a", "-n", "a'b\"c", "q?x#y&z=1", "100%25", "%41", "a\nb", "\u2028\x7f"]
    for one in names:
        sandbox.files.write(f"{name}/{one}", one)
    expected = sorted(names, key=os.fsencode)
    assert sorted(path.name for path in where.iterdir()) == sorted(names)
    entries = sandbox.files.list(name)
    assert [entry.name for entry in entries] == expected
    assert [sandbox.files.read_text(entry.path) for entry in entries] == expected


def test_a_name_that_is_not_utf_8_is_reached_by_what_the_list_shows(sandbox, directory):
    # Only a command can make them; in the order of their bytes.
    name, where = directory
    shown = {
        b"100%\xff": "100%25%FF",
        b"50%41": "50%41",
        b"caf\xc3\xa9": "café",
        b"caf\xe9": "caf%E9",
        b"d\xe9/\xfe": "d%E9/%FE",
        b"\x80": "%80",
    }
    script = (
        "import os\n"
        "os.mkdir(b'd\\xe9')\n"
        f"for name in {list(shown)!r}: open(name, 'xb').write(name)\n"
    )
    sandbox.run(python(script), cwd=name)
    paths = {f"/{name}/{seen}": raw for raw, seen in shown.items()}
    entries = sandbox.files.list(name)
    assert [entry.name for entry in entries] == [
        "100%25%FF",
        "50%41",
        "café",
        "caf%E9",
        "d%E9",
        "%80",
    ]
    inner = f"/{name}/d%E9"
    entries = [entry for entry in entries if entry.type == "file"] + sandbox.files.list(inner)
    assert {entry.path for entry in entries} == set(paths)
    for entry in entries:
        assert sandbox.files.stat(entry.path) == entry
        assert sandbox.files.read(entry.path) == paths[entry.path]
        sandbox.files.delete(entry.path)
        assert not sandbox.files.exists(entry.path)
    assert os.listdir(os.fsencode(where)) == [b"d\xe9"]
    sandbox.files.delete(inner, recursive=True)
    assert os.listdir(where) == []


def test_pages_of_one_entry_each_lead_through_all_names(sandbox, directory):
    name, where = directory
    for one in [b"%", b"a", b"b%\xff", b"caf\xe9", b"caf\xc3\xa9", b"caf", b"\x80\xff", b"~"]:
        (where / os.fsdecode(one)).touch()
    whole, after, seen = sandbox.files.list(name), None, []
    for _ in range(len(whole)):
        params = {"path": name, "limit": 1} | ({"after": after} if after else {})
        page = sandbox._request("GET", "/files/list", params=params).json()
        seen += [FileEntry(**entry) for entry in page["entries"]]
        after = page["next"]
    assert (seen, after) == (whole, None) and len(whole) == 8


def test_a_range_is_that_of_the_file(sandbox, directory):
    name, where = directory
    data = content(1000)
    (where / "file").write_bytes(data)
    for offset, length in itertools.product(["", 0, 1, 999, 1000, 1001, 2**40, "x"], [None, 1, 9]):
        params = {"path": f"{name}/file", "offset": offset}
        params |= {} if length is None else {"length": length}
        answer = sandbox._request("GET", "/files/read", params=params)
        begin = offset if isinstance(offset, int) else 0
        expected = data[begin:][:length]
        assert answer.content == expected, (offset, length)
        assert int(answer.headers["Content-Length"]) == len(expected)


def test_a_file_without_a_size_is_read_to_its_end(root_server, tmp_path):
    with connect(root_server.url, root_server.token) as sandbox:
        sandbox.files.download("/proc/version", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == Path("/proc/version").read_bytes()


def test_nothing_outside_the_workspace_is_reached(sandbox, server, directory, tmp_path):
    name, where = directory
    (tmp_path / "secret").write_text("secret")
    (where / "file").symlink_to(tmp_path / "secret")
    (where / "dir").symlink_to(tmp_path)
    (where / "new").symlink_to(tmp_path / "new")
    up = "../" * 40 + str(tmp_path).lstrip("/")
    files = sandbox.files
    for path in [f"{name}/file", f"{name}/dir/secret", f"{up}/secret", f"{name}/{up}/secret"]:
        params = {"path": path}
        assert refusal(sandbox._request, "GET", "/files/read", params=params)[0] in (400, 403, 404)
    for path in [f"{name}/dir", up]:
        assert refusal(files.list, path)[0] in (400, 403, 404)
    paths = [f"{name}/{path}" for path in ["file", "dir/secret", "new", "dir/new"]]
    for path in [*paths, f"{up}/secret", f"{up}/new"]:
        for data in ["x", "x" * (3 * MIB)]:
            # A link itself may be replaced; where it leads to, nothing may be.
            with contextlib.suppress(SandboxError):
                files.write(path, data)
        with contextlib.suppress(SandboxError):
            files.delete(path, recursive=True)
    for path in [f"{name}/dir/sub", f"{up}/sub"]:
        assert refusal(files.mkdir, path)[0] in (400, 403, 404, 409)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").read_text() == "secret"


# What is refused.


@pytest.mark.parametrize(
    "method, route, more, status, said",
    [
        ("GET", "/files/read", {"params": {"path": "no/such"}}, 404, ""),
        ("GET", "/files/list", {"params": {"path": "no/such"}}, 404, ""),
        ("GET", "/files/stat", {"params": {"path": "no/such"}}, 404, ""),
        ("DELETE", "/files/delete", {"params": {"path": "no/such"}}, 404, ""),
        ("GET", "/files/read", {"params": {"path": "/"}}, 409, "is a directory: "),
        ("GET", "/files/read", {}, 400, "missing 'path' query parameter"),
        ("GET", "/files/list", {"params": {"path": ""}}, 400, "missing 'path' query parameter"),
        ("PUT", "/files/write", {"content": b""}, 400, "missing 'path' query parameter"),
        (
            "PUT",
            "/files/write",
            {"params": {"path": "unwanted"}, "content": iter([b"x"])},
            411,
            "chunked request bodies not supported; send Content-Length",
        ),
        ("POST", "/exec", {"json": {}}, 400, "missing 'cmd' (string or array of strings)"),
        ("POST", "/exec", {"json": {"cmd": 1}}, 400, "missing 'cmd' (string or array of strings)"),
        ("POST", "/exec", {"json": {"cmd": []}}, 400, "cmd array must not be empty"),
        ("POST", "/exec", {"json": {"cmd": ["a", 1]}}, 400, "cmd array items must be strings"),
        (
            "POST",
            "/exec",
            {"json": {"cmd": ["a"], "shell": True}},
            400,
            "shell=true requires 'cmd' to be a string",
        ),
        (
            "POST",
            "/exec",
            {"json": {"cmd": "a", "shell": False}},
            400,
            "shell=false requires 'cmd' to be an array of strings",
        ),
        ("POST", "/exec", {"content": b"{"}, 400, "invalid JSON body: "),
        ("POST", "/exec", {"content": b'{"cmd":"a","cmd":"b"}'}, 400, "invalid JSON body: "),
        ("POST", "/processes", {"json": {"cmd": []}}, 400, "cmd array must not be empty"),
        ("GET", "/no/such", {}, 404, "no route: GET /v1/no/such"),
        ("POST", "/files/read", {}, 404, "no route: POST /v1/files/read"),
    ],
)
def test_what_is_refused_says_why(sandbox, server, method, route, more, status, said):
    seen, text = refusal(sandbox._request, method, route, **more)
    assert seen == status and said in text
    assert not (server.workspace / "unwanted").exists()
    assert sandbox.run("echo alive").stdout == "alive\n"


def test_a_body_past_its_limit_is_refused_and_the_server_goes_on(sandbox):
    # It is sent whole before the answer is read, or the connection breaks meanwhile.
    status, _ = refusal(sandbox.run, "cat", stdin="x" * (33 * MIB))
    assert status == 413
    assert sandbox.run("echo alive").stdout == "alive\n"


def test_a_wrong_token_opens_nothing(server):
    # The client saw the health of the server before that.
    with connect(server.url, "wrong") as sandbox:
        for call in [
            lambda: sandbox.run("touch unwanted"),
            lambda: sandbox.run("touch unwanted", background=True),
            lambda: sandbox.processes(),
            lambda: sandbox.files.list("/"),
            lambda: sandbox.files.write("unwanted", "x"),
            lambda: sandbox._request("GET", "/no/such"),
        ]:
            status, text = refusal(call)
            assert status == 403 and "invalid or missing X-Sandbox-Token" in text
    assert not (server.workspace / "unwanted").exists()


def test_the_health_is_everybody_s_and_nothing_else_is(server):
    health = requests.get(server.url + "/health").json()
    assert health["status"] == "ok" and health["protocol"] >= 3
    for headers in [{}, {"Authorization": f"Bearer {server.token}"}]:
        answer = requests.get(server.url + "/v1/processes", headers=headers)
        expected = 403, {"error": "invalid or missing X-Sandbox-Token"}
        assert (answer.status_code, answer.json()) == expected


def test_no_command_finds_the_token(sandbox, server, directory):
    name, where = directory
    script = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
    seen = sandbox.run(script, check=False).stdout
    process = sandbox.run(f"({script}) >found; exit 3", cwd=name, background=True)
    assert over(sandbox, process.id).exit_code == 3
    for text in [seen, (where / "found").read_bytes().decode(errors="replace")]:
        # The server itself was looked at too.
        assert "RUNCAP_INTEROP=" in text and "serve\0--listen" in text
        assert server.token not in text

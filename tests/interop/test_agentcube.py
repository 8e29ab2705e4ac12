"""agentcube-sdk's own data-plane client, unmodified, against the PicoD dialect.

AgentCube's router would sign each request. There is none here, so the token of the server stands in
the client's own session, as a default header.
"""

import concurrent.futures
import json
import os
import time

import pytest
import requests
from agentcube.clients.code_interpreter_data_plane import CodeInterpreterDataPlaneClient
from agentcube.exceptions import CommandExecutionError

CAP = 10 * 1024 * 1024
KEYS = ["stdout", "stderr", "exit_code", "duration", "start_time", "end_time"]


def connect(server, authorization=None):
    """The SDK's client of a server."""
    client = CodeInterpreterDataPlaneClient("interop", base_url=server.url + "/")
    client.session.headers["Authorization"] = authorization or f"Bearer {server.token}"
    return client


@pytest.fixture
def client(server):
    """A client that knows the token."""
    client = connect(server)
    yield client
    client.close()


def post(client, route, body, status=200):
    """The whole answer, of which the SDK's own methods return one field."""
    answer = client._request("POST", "api/" + route, body=json.dumps(body).encode())
    assert answer.status_code == status, answer.text[:1000]
    return answer.json()


def execute(client, command, **more):
    """The answer to a command, through the client's session."""
    return post(client, "execute", {"command": command, **more})


def shell(client, script, **more):
    """The answer to a script."""
    return execute(client, ["sh", "-c", script], **more)


def refusal(call, *args):
    """Status and message of the refusal that the SDK raises."""
    with pytest.raises(requests.HTTPError) as raised:
        call(*args)
    body = raised.value.response.json()
    assert body["code"] == raised.value.response.status_code
    return body["code"], body["error"]


# Commands.


def test_commands_are_words_or_a_text_that_the_client_splits(client):
    assert client.execute_command(["printf", "%s|", "a b", "$HOME", "ü"]) == "a b|$HOME|ü|"
    assert client.execute_command("printf '%s|' 'a b' c") == "a b|c|"


def test_a_failure_is_raised_with_its_code_and_stderr(client):
    with pytest.raises(CommandExecutionError) as raised:
        client.execute_command(["sh", "-c", "echo out; echo wrong >&2; exit 3"])
    assert (raised.value.exit_code, raised.value.stderr) == (3, "wrong\n")


def test_a_program_that_is_missing_is_named(client):
    with pytest.raises(CommandExecutionError) as raised:
        client.execute_command(["no-such-program"])
    assert raised.value.exit_code == 1 and "no-such-program" in raised.value.stderr


def test_a_death_by_signal_is_minus_one(client):
    with pytest.raises(CommandExecutionError) as raised:
        client.execute_command(["sh", "-c", "kill -9 $$"])
    assert raised.value.exit_code == -1


def test_code_runs_in_the_workspace(client, server):
    assert client.run_code("python", "for n in range(3):\n    print(n * 'ü')") == "\nü\nüü\n"
    where = server.workspace.resolve()
    assert client.run_code("bash", "set -- a b\necho $#; pwd -P") == f"2\n{where}\n"
    with pytest.raises(CommandExecutionError, match="ZeroDivisionError") as raised:
        client.run_code("python", "1 / 0")
    assert raised.value.exit_code == 1


def test_an_answer_that_is_whole_has_six_keys_in_order(client):
    answer = shell(client, "printf out; printf err >&2; exit 4")
    assert list(answer) == KEYS
    assert [answer[key] for key in KEYS[:3]] == ["out", "err", 4]
    assert isinstance(answer["duration"], float) and answer["start_time"] < answer["end_time"]


def test_environment_and_directory_are_those_of_the_request(client, server):
    where = {"env": {"WORD": "a b"}, "working_dir": "made/on/demand"}
    answer = shell(client, 'echo "$WORD"; pwd -P', **where)
    assert answer["stdout"] == f"a b\n{server.workspace.resolve()}/made/on/demand\n"


def test_no_command_starts_outside_the_workspace(client, server):
    for directory in ["../../..", "made/../../.."]:
        body = {"command": ["touch", "unwanted"], "working_dir": directory}
        refused = post(client, "execute", body, 400)["error"]
        assert refused.startswith("Invalid working directory: "), refused
    answer = execute(client, ["pwd"], working_dir="/tmp")
    assert answer["stdout"] == f"{server.workspace.resolve()}/tmp\n"


def test_the_token_of_the_server_is_nowhere_to_be_seen(client, server):
    answer = shell(client, "env; cat /proc/$PPID/environ /proc/$PPID/cmdline | tr '\\0' '\\n'")
    assert "PATH=" in answer["stdout"] and server.token not in answer["stdout"] + answer["stderr"]


def test_a_background_process_does_not_hold_up_the_answer(client):
    # With Go's cmd.Run the answer comes when the last holder of the pipe ends.
    began = time.monotonic()
    assert client.execute_command(["sh", "-c", "sleep 3 & echo started"]) == "started\n"
    assert time.monotonic() - began < 2


# Limits.


@pytest.mark.parametrize("to", ["stdout", "stderr"])
@pytest.mark.parametrize("more", [0, 1, 2 * CAP])
def test_past_the_cap_output_is_counted_and_said_to_be_cut(client, to, more):
    to_fd = {"stdout": 1, "stderr": 2}[to]
    answer = shell(client, f"head -c {CAP + more} /dev/zero | tr '\\0' x >&{to_fd}; exit 5")
    assert answer["exit_code"] == 5
    flags = {key: answer[key] for key in answer if key not in KEYS}
    assert flags == ({to + "_truncated": True} if more else {})
    kept = answer[to][:CAP]
    assert kept == "x" * CAP
    note = answer["stderr"].removeprefix("x" * CAP)
    if more:
        assert str(CAP) in note and str(CAP + more) in note and len(note.splitlines()) <= 2
    else:
        assert note == "" and len(answer[to]) == CAP


def test_the_client_gets_the_first_ten_mebibytes(client):
    script = "echo first; head -c 50000000 /dev/zero | tr '\\0' y"
    assert client.execute_command(["sh", "-c", script]) == "first\n" + "y" * (CAP - 6)


def test_a_character_that_the_cap_would_cut_is_left_out(client):
    # CAP is no multiple of the three bytes of a euro sign.
    answer = shell(client, "yes € | head -n 4000000 | tr -d '\\n'")
    assert answer["stdout"] == "€" * (CAP // 3) and answer["stdout_truncated"] is True


@pytest.mark.parametrize("timeout, said", [(1, 1), (1.5, 2), (2.5, 2)])
def test_at_its_deadline_a_command_ends_and_the_client_still_hears_of_it(client, timeout, said):
    # The SDK stops reading two seconds after the deadline; KILL alone ends this command.
    script = "trap '' TERM; echo $$ >pid; echo early >&2; while :; do sleep 1; done"
    with pytest.raises(CommandExecutionError) as raised:
        client.execute_command(["sh", "-c", script], timeout=timeout)
    assert raised.value.exit_code == 124
    assert raised.value.stderr.splitlines() == ["early", f"Command timed out after {said} seconds"]
    pid = int(client.execute_command(["cat", "pid"]))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_deadline_is_named_after_a_full_stderr_too(client):
    script = "echo kept; head -c 20000000 /dev/zero | tr '\\0' e >&2; sleep 30"
    answer = shell(client, script, timeout="1500ms")
    assert (answer["exit_code"], answer["stdout"]) == (124, "kept\n")
    notes = answer["stderr"].removeprefix("e" * CAP).strip().splitlines()
    assert "Command timed out after 2 seconds" in notes
    assert any("20000000" in note for note in notes)


@pytest.mark.parametrize(
    "timeout", ["", "1h2m3.5s", "+5s", ".5m", "500ms", "9000000µs", "9000000μs"]
)
def test_timeouts_are_durations_of_go(client, timeout):
    assert execute(client, ["true"], timeout=timeout)["exit_code"] == 0


@pytest.mark.parametrize("timeout", ["0", "0s", "-3s"])
def test_no_time_is_a_timeout_at_once(client, timeout):
    answer = execute(client, ["sleep", "30"], timeout=timeout)
    assert answer["exit_code"] == 124 and answer["duration"] < 1


@pytest.mark.parametrize("timeout", ["30", "3 s", "1e3s", "soon", "1d"])
def test_other_timeouts_are_refused(client, timeout):
    body = {"command": ["true"], "timeout": timeout}
    assert post(client, "execute", body, 400)["error"].startswith("Invalid timeout format: ")


@pytest.mark.parametrize("command", [None, "echo", [], [1], {}])
def test_a_command_is_a_list_of_words(client, command):
    answer = post(client, "execute", {"command": command}, 400)
    assert answer["code"] == 400
    assert command != [] or answer["error"] == "command cannot be empty"


def test_a_body_past_its_limit_is_refused_and_the_server_goes_on(client):
    body = {"command": ["true"], "env": {"A": "x" * (32 << 20)}}
    answer = post(client, "execute", body, 413)
    assert answer["detail"] == "maximum allowed size is 33554432 bytes"
    assert client.execute_command("echo alive") == "alive\n"


def test_sixteen_clients_at_once_get_what_is_theirs(server):
    def count(number):
        client = connect(server)
        script = f"seq {number} 7 1000000 | tee /dev/stderr | wc -c >{number}.count"
        answer = execute(client, ["sh", "-c", script])
        text = "".join(f"{n}\n" for n in range(number, 1000001, 7))
        assert client.execute_command(["cat", f"{number}.count"]).strip() == str(len(text))
        assert (list(answer), answer["exit_code"], answer["stderr"]) == (KEYS, 0, text)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(count, range(1, 17)))


# Files.


def test_a_text_is_written_with_its_directories(client, server):
    client.write_file("zwölf\n", "new/deep/text.txt")
    written = server.workspace / "new/deep/text.txt"
    assert written.read_text() == "zwölf\n" and written.stat().st_mode & 0o777 == 0o644
    client.write_file("short", "new/deep/text.txt")
    assert written.read_text() == "short"
    client.write_file("", "new/empty")
    assert (server.workspace / "new/empty").read_bytes() == b""


def test_an_absolute_path_is_taken_from_the_workspace(client, server):
    client.write_file("here", "/absolute.txt")
    assert (server.workspace / "absolute.txt").read_text() == "here"


@pytest.mark.parametrize("name", ["plain.bin", "with space.bin", "ünï.bin"])
def test_a_file_comes_back_as_it_was_sent(client, server, tmp_path, name):
    content = os.urandom(3 << 20) + b"\r\n--boundary\r\n"
    (tmp_path / "sent").write_bytes(content)
    client.upload_file(str(tmp_path / "sent"), "files/" + name)
    assert (server.workspace / "files" / name).read_bytes() == content
    client.download_file("/files/" + name, str(tmp_path / "got/there"))
    assert (tmp_path / "got/there").read_bytes() == content


def test_a_listing_is_sorted_and_says_what_each_entry_is(client, server):
    directory = server.workspace / "listed"
    (directory / "sub").mkdir(parents=True)
    (directory / "b").write_bytes(b"12345")
    (directory / "a").write_bytes(b"")
    (directory / "a").chmod(0o750)
    entries = client.list_files("listed")
    assert [set(entry) for entry in entries] == [{"name", "size", "modified", "mode", "is_dir"}] * 3
    assert [(entry["name"], entry["mode"], entry["is_dir"]) for entry in entries] == [
        ("a", "-rwxr-x---", False),
        ("b", "-rw-r--r--", False),
        ("sub", "drwxr-xr-x", True),
    ]
    assert entries[1]["size"] == 5
    assert "listed" in [entry["name"] for entry in client.list_files()]


def test_what_is_not_there_is_404(client, tmp_path):
    target = str(tmp_path / "target")
    assert refusal(client.download_file, "no/such/file", target) == (404, "File not found")
    assert refusal(client.list_files, "no/such/directory") == (404, "Directory not found")
    assert not os.path.exists(target)


def test_a_directory_is_not_downloaded(client, tmp_path):
    client.write_file("x", "directory/file")
    answer = refusal(client.download_file, "directory", str(tmp_path / "target"))
    assert answer == (400, "Path is a directory, not a file")


def test_nothing_outside_the_workspace_is_reached(client, server, tmp_path):
    outside = tmp_path / "secret"
    outside.write_text("secret")
    steps = "../" * 40
    (server.workspace / "link").symlink_to(outside)
    assert refusal(client.write_file, "x", f"{steps}{outside}")[0] == 400
    assert refusal(client.list_files, steps)[0] == 400
    assert refusal(client.download_file, "link", str(tmp_path / "target"))[0] in (400, 403, 404)
    assert outside.read_text() == "secret"


# Who is let in.


@pytest.mark.parametrize(
    "authorization, message",
    [
        ("Basic eDp5", "Invalid Authorization header format"),
        ("Bearer wrong", "Invalid token"),
    ],
)
def test_a_wrong_token_is_refused(server, authorization, message):
    client = connect(server, authorization)
    assert refusal(client.execute_command, ["true"]) == (401, message)
    assert refusal(client.write_file, "x", "unwanted") == (401, message)
    assert not (server.workspace / "unwanted").exists()


def test_a_client_without_a_token_is_refused_but_sees_the_health(server):
    client = connect(server)
    del client.session.headers["Authorization"]
    assert refusal(client.list_files) == (401, "Missing Authorization header")
    health = client._request("GET", "health").json()
    assert (health["status"], health["service"]) == ("ok", "PicoD") and health["uptime"]

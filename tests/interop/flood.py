"""A gigabyte of output, alone and from 16 clients at once, through agentcube-sdk's own client.

usage: flood.py URL    (RUNCAP_TOKEN is the token; tests/container.sh calls it)

Prints what it proves, a line each, and ends with the first claim that does not hold.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from agentcube.clients.code_interpreter_data_plane import CodeInterpreterDataPlaneClient

CAP = 10 << 20
WRITTEN = 1 << 30
# A gigabyte; busybox knows no G.
FLOOD = "head -c 1024m /dev/zero | tr '\\0' "


def main(url):
    """The experiment."""
    client = connect(url)
    client.write_file("still here\n", "kept/file.txt")
    text = client.execute_command(["/busybox", "sh", "-c", FLOOD + "a"], timeout=300)
    assert text == "a" * CAP, f"{len(text)} characters"
    print("ok: the client gets the first 10 MiB of 1 GiB")
    answer = flood(client, "a")
    assert answer["stdout"] == text and answer["stdout_truncated"] is True
    assert str(CAP) in answer["stderr"] and str(WRITTEN) in answer["stderr"], answer["stderr"]
    print(f"ok: a note says so: {answer['stderr'].strip()}")

    letters = "bcdefghijklmnopq"
    with ThreadPoolExecutor(len(letters)) as pool:
        answers = list(pool.map(lambda letter: flood(connect(url), letter), letters))
    for letter, answer in zip(letters, answers, strict=True):
        # The memory for output is shared: some keep less, but what is kept is theirs and said.
        kept = len(answer["stdout"])
        assert answer["stdout"] == letter * kept and 65536 <= kept <= CAP, (letter, kept)
        assert answer["stdout_truncated"] is True, letter
        assert kept == CAP or "output budget" in answer["stderr"], (letter, answer["stderr"])
        for count in (kept, WRITTEN):
            assert str(count) in answer["stderr"], (letter, count, answer["stderr"])
    print(
        f"ok: {len(letters)} clients at once: {[len(answer['stdout']) for answer in answers]} kept"
    )

    echo = ["/busybox", "cat", "kept/file.txt"]
    assert client.execute_command(echo) == "still here\n"
    assert [entry["name"] for entry in client.list_files("kept")] == ["file.txt"]
    print("ok: the file is still there")


def connect(url):
    """The SDK's client with the token in its own session."""
    client = CodeInterpreterDataPlaneClient("flood", base_url=url + "/")
    client.session.headers["Authorization"] = "Bearer " + os.environ["RUNCAP_TOKEN"]
    return client


def flood(client, letter):
    """The whole answer to a command that writes a gigabyte of one letter."""
    body = {"command": ["/busybox", "sh", "-c", FLOOD + letter], "timeout": "300s"}
    answer = client._request("POST", "api/execute", body=json.dumps(body).encode(), timeout=310)
    assert answer.status_code == 200, answer.text[:1000]
    answer = answer.json()
    assert answer["exit_code"] == 0, (answer["exit_code"], answer["stderr"][-1000:])
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])

"""deepagents over runcap: LangChain's own sandbox suite, and what it does not ask.

The suite knows nothing of limits, so truncation, its warning and the ends of commands are here.
"""

import logging
import re

import pytest
from langchain_tests.integration_tests.sandboxes import SandboxIntegrationTests

from backend import RuncapBackend
from hub_backend import HubBackend
from server_backend import ServerBackend

MIB = 1024 * 1024
CAP = 10 * MIB


class TestJson(SandboxIntegrationTests):
    """One `runcap json` a call, as through `docker exec -i`."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, runcap, tmp_path_factory):
        cls.sandbox_root_dir = str(tmp_path_factory.mktemp("json"))
        return RuncapBackend(runcap)


class TestServer(SandboxIntegrationTests):
    """PicoD's routes of `runcap serve`."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, root_server, tmp_path_factory):
        cls.sandbox_root_dir = str(tmp_path_factory.mktemp("server"))
        return ServerBackend(root_server.url, root_server.token)


class TestHub(SandboxIntegrationTests):
    """The sandbox routes of `runcap serve`, through huggingface_hub."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, root_server, tmp_path_factory):
        cls.sandbox_root_dir = str(tmp_path_factory.mktemp("hub"))
        return HubBackend(root_server.url, root_server.token)


@pytest.fixture(params=["json", "server", "hub"])
def kind(request):
    """Which of the three backends."""
    return request.param


@pytest.fixture
def backend(kind, request):
    """One of the three backends; a server is started only for those that need it."""
    if kind == "json":
        return RuncapBackend(request.getfixturevalue("runcap"))
    server = request.getfixturevalue("root_server")
    kinds = {"server": ServerBackend, "hub": HubBackend}
    return kinds[kind](server.url, server.token)


def letters(count, to=1):
    """A command that writes so many letters."""
    return f"head -c {count} /dev/zero | tr '\\0' a >&{to}"


@pytest.mark.parametrize("to", [1, 2], ids=["stdout", "stderr"])
@pytest.mark.parametrize("more", [-1, 0, 1, 5 * MIB])
def test_truncated_is_true_exactly_when_bytes_were_dropped(backend, caplog, to, more):
    # The boundary from both sides: the flag, its one warning and the text say the same.
    written, cut = CAP + more, more > 0
    with caplog.at_level(logging.WARNING):
        answer = backend.execute(letters(written, to))
    assert (answer.exit_code, answer.truncated) == (0, cut)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == cut and all(str(written) in text for text in warnings), warnings
    if cut:
        # The text says it too, in words that are no part of the cap.
        words = re.sub("a{99,}", "", answer.output)
        assert "bytes" in words and len(words) < 200
        assert len(answer.output) - len(words) in range(CAP, CAP + 5)
    else:
        assert answer.output == "a" * written


def test_the_exit_code_is_that_of_a_command_whose_output_was_cut(backend):
    answer = backend.execute(f"{letters(3 * CAP)}; exit 7")
    assert (answer.exit_code, answer.truncated) == (7, True)


def test_a_deadline_keeps_what_was_written_and_says_so(backend):
    answer = backend.execute("echo started; sleep 30", timeout=1)
    assert answer.exit_code in (None, 124) and answer.truncated is False
    first, rest = answer.output.split("\n", 1)
    assert first == "started" and "time" in rest and "1s" in rest or "1 second" in rest


def test_a_signal_is_no_success(backend):
    answer = backend.execute("kill -9 $$")
    assert answer.exit_code in (None, -1)


def test_the_json_backend_names_the_signal(runcap):
    assert "SIGKILL" in RuncapBackend(runcap).execute("kill -9 $$").output


def test_files_of_any_bytes_and_names_come_back(backend, tmp_path):
    names = ["plain", "with space", "ünï", "-n", "a'b\"c", "100%25", "q?x#y"]
    files = [(f"{tmp_path}/new/{name}", bytes(range(256)) * 9 + name.encode()) for name in names]
    assert [answer.error for answer in backend.upload_files(files)] == [None] * len(files)
    answers = backend.download_files([path for path, _ in files])
    assert [(answer.path, answer.content) for answer in answers] == files
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(names)


def test_one_bad_file_does_not_stop_the_others(backend, tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    paths = ["directory", "missing", "file"]
    answers = backend.download_files([f"{tmp_path}/{name}" for name in paths] + ["relative"])
    seen = [(answer.content, answer.error) for answer in answers]
    failed = [(None, "is_directory"), (None, "file_not_found")]
    assert seen == [*failed, (b"old", None), (None, "invalid_path")]
    answers = backend.upload_files([(f"{tmp_path}/directory", b"x"), (f"{tmp_path}/file", b"new")])
    assert [answer.error is None for answer in answers] == [False, True]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_full_disk_is_told_in_its_own_words(runcap):
    [answer] = RuncapBackend(runcap).upload_files([("/dev/full", b"x" * 9999)])
    assert "No space left on device" in answer.error


def test_an_upload_that_is_too_large_is_an_error_and_no_file(runcap, tmp_path):
    # 30 MiB are 40 of base64, and a request has at most 32.
    path = tmp_path / "large"
    [answer] = RuncapBackend(runcap).upload_files([(str(path), bytes(30 * MIB))])
    assert "33554432" in answer.error and not path.exists()


def test_a_download_that_is_too_large_is_an_error_and_no_part_of_the_file(runcap, tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(257 * MIB)
    [answer] = RuncapBackend(runcap).download_files([str(path)])
    assert "268435456" in answer.error and answer.content is None

"""The same sandbox through huggingface_hub's own client, for a `runcap serve --workspace /`."""

import logging

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from huggingface_hub import HfApi, Sandbox
from huggingface_hub._sandbox import SandboxFiles, _SandboxServer
from huggingface_hub.errors import SandboxError

CAP = 10 * 1024 * 1024
ERRORS = {403: "permission_denied", 404: "file_not_found", 409: "is_directory"}


def connect(url, token):
    """The client of a server, as Sandbox.create makes it once a rented machine has its address."""
    server = _SandboxServer(
        job_id="interop",
        owner="interop",
        image=None,
        base_url=url,
        nonce="interop",
        sandbox_token=token,
        api=HfApi(token="hf_of_no_account"),
        max_connections=SandboxFiles.PARALLEL_MAX_WORKERS + 2,
    )
    server.wait_ready(10)
    return Sandbox(id="interop", server=server, local_id=None, owns_sandbox=False, owns_server=True)


class HubBackend(BaseSandbox):
    """Commands and files as the client moves them; the cap is kept here, since it has none."""

    id = "runcap-hub"

    def __init__(self, url, token):
        self.sandbox = connect(url, token)

    def execute(self, command, *, timeout=None):
        seconds, parts, received = timeout or 60, [], 0

        def take(text):
            nonlocal received
            parts.append(text[: max(CAP - received, 0)])
            received += len(text)

        bounds = {"timeout": seconds, "check": False, "capture_output": False}
        result = self.sandbox.run(command, on_stdout=take, on_stderr=take, **bounds)
        if received > CAP:
            logging.warning("output truncated: kept %d of %d characters", CAP, received)
            parts.append(f"\nkept the first {CAP} characters; the rest of the bytes is dropped")
        if result.timed_out:
            parts.append(f"\ntimed out after {seconds}s")
        return ExecuteResponse("".join(parts), result.exit_code, received > CAP)

    def upload_files(self, files):
        return [FileUploadResponse(path, self._put(path, content)) for path, content in files]

    def download_files(self, paths):
        return [FileDownloadResponse(path, *self._get(path)) for path in paths]

    def _put(self, path, content):
        return self._move(self.sandbox.files.write, path, content)[1]

    def _get(self, path):
        return self._move(self.sandbox.files.read, path)

    def _move(self, move, path, *content):
        if not path.startswith("/"):
            return None, "invalid_path"
        try:
            return move(path, *content), None
        except SandboxError as error:
            return None, ERRORS.get(error.status_code, str(error))

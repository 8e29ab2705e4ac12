"""The same sandbox over HTTP, for a `runcap serve --workspace /`."""

import logging
from urllib.parse import quote

import requests
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

ERRORS = {400: "is_directory", 403: "permission_denied", 404: "file_not_found"}


class ServerBackend(BaseSandbox):
    """Commands through /api/execute, files through /api/files."""

    id = "runcap-serve"

    def __init__(self, url, token):
        self.url = url + "/api/"
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {token}"

    def execute(self, command, *, timeout=None):
        seconds = timeout or 60
        body = {"command": ["/bin/sh", "-c", command], "timeout": f"{seconds}s"}
        answer = self.http.post(self.url + "execute", json=body, timeout=seconds + 5)
        answer.raise_for_status()
        answer = answer.json()
        truncated = "stdout_truncated" in answer or "stderr_truncated" in answer
        if truncated:
            # The server's own note is the end of stderr.
            logging.warning("output truncated: %s", answer["stderr"][-200:])
        return ExecuteResponse(answer["stdout"] + answer["stderr"], answer["exit_code"], truncated)

    def upload_files(self, files):
        return [FileUploadResponse(path, self._put(path, content)) for path, content in files]

    def download_files(self, paths):
        return [FileDownloadResponse(path, *self._get(path)) for path in paths]

    def _put(self, path, content):
        if not path.startswith("/"):
            return "invalid_path"
        form = {"path": path}
        answer = self.http.post(self.url + "files", data=form, files={"file": content}, timeout=60)
        return None if answer.ok else ERRORS.get(answer.status_code, answer.text)

    def _get(self, path):
        if not path.startswith("/"):
            return None, "invalid_path"
        answer = self.http.get(self.url + "files/" + quote(path.lstrip("/")), timeout=60)
        if answer.ok:
            return answer.content, None
        return None, ERRORS.get(answer.status_code, answer.text)

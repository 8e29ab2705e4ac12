"""runcap as a sandbox of LangChain's deepagents. README shows all that follows."""

import base64
import json
import logging
import subprocess

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

# Exit codes of the two scripts that move files, and what deepagents calls them.
ERRORS = {2: "file_not_found", 13: "permission_denied", 21: "is_directory", 22: "invalid_path"}
CHECK = 'case "$1" in /*) ;; *) exit 22 ;; esac; [ ! -d "$1" ] || exit 21; '
PUT = CHECK + 'mkdir -p -- "${1%/*}/" && true >>"$1" || exit 13; cat >"$1"'
GET = CHECK + '[ -e "$1" ] || exit 2; [ -r "$1" ] || exit 13; cat <"$1"'


class RuncapBackend(BaseSandbox):
    id = "runcap"

    def __init__(self, *runcap):
        self.argv = [*runcap, "json"]

    def ask(self, **request):
        sent = json.dumps(request).encode()
        return json.loads(subprocess.run(self.argv, input=sent, stdout=subprocess.PIPE).stdout)

    def execute(self, command, *, timeout=None):
        bounds = {"timeout": timeout or 60, "max_output_size": "10M", "keep": "head+tail"}
        answer = self.ask(command=command, merge_stderr=True, **bounds)
        truncated = answer.get("stdout_truncated", False)
        if truncated:
            dropped, received = answer["stdout_dropped_bytes"], answer["stdout_bytes"]
            logging.warning("output truncated: %d of %d bytes dropped", dropped, received)
        output = "\n".join(filter(None, [answer["stdout"], why(answer)]))
        return ExecuteResponse(output, answer["exit_code"], truncated)

    def upload_files(self, files):
        return [FileUploadResponse(path, self.move(PUT, path, data)[1]) for path, data in files]

    def download_files(self, paths):
        return [FileDownloadResponse(path, *self.move(GET, path, b"")) for path in paths]

    def move(self, script, path, data):
        exact = {"encoding": "base64", "stdin_base64": base64.b64encode(data).decode()}
        whole = {"max_output_size": "256M", "overflow": "stop"}
        answer = self.ask(command=["/bin/sh", "-c", script, "sh", path], **exact, **whole)
        if answer["exit_code"] != 0:
            said = base64.b64decode(answer.get("stderr_base64", "")).decode(errors="replace")
            return None, ERRORS.get(answer["exit_code"]) or why(answer) or said
        return base64.b64decode(answer["stdout_base64"]), None


def why(answer):
    """Why a command has no exit code; nothing if it has one."""
    error = answer.get("error", {}).get("message", "")
    return answer.get("reason") or answer.get("signal_name") or error

#!/usr/bin/env bash
# runcap inside a real container that holds nothing but runcap and busybox, with 32 MiB of memory and
# no network. Needs a Docker engine: takes the one that runs, else starts its own and stops it again,
# which takes root. Installs what is missing from Debian's packages. Reads no stdin.
#
# usage: tests/container.sh RUNCAP [PYTHON]
#
# RUNCAP is the static binary. With PYTHON, which has what tests/interop/requirements.txt names,
# servers in containers of 64 MiB meet a published client that floods them and one that reads slowly.
set -euo pipefail
exec </dev/null
binary=$(realpath "${1:?usage: tests/container.sh RUNCAP [PYTHON]}")
# No realpath: the Python of a virtual environment is a link that must be called by its own name.
python=${2:+$(realpath -s "$2")}
interop=$(realpath "$(dirname "$0")/interop")

fail() { printf 'tests/container.sh: %s\n' "$*" >&2 && exit 1; }

# check WHAT EXPECTED SEEN, where EXPECTED is a pattern of the shell.
checks=0
check() {
    # shellcheck disable=SC2053 # a pattern is what is wanted
    [[ $3 == $2 ]] || fail "$(printf '%s\n  expected: %q\n  seen:     %q' "$1" "$2" "${3:0:2000}")"
    checks=$((checks + 1))
    printf 'ok: %s\n' "$1"
}

# wait_for WHAT COMMAND: until COMMAND succeeds, at most a minute.
wait_for() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 300; tries++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    fail "waited in vain: $what"
}

scratch=$(mktemp -d)
engine=
end() {
    docker rm -f box >/dev/null 2>&1 || true
    docker rmi -f runcap-box >/dev/null 2>&1 || true
    if [[ $engine ]]; then
        kill "$engine" || true
        wait "$engine" || true
        # The engine leaves the network of containers that had the machine's mounted.
        umount "$scratch/exec/netns/default" 2>/dev/null || true
    fi
    rm -rf "$scratch"
}

# What is there already is not this script's to remove.
engine_answers() { docker info --format '{{.ServerVersion}}' 2>/dev/null | grep -q .; }
packages=()
[[ -x /bin/busybox ]] || packages+=(busybox-static)
command -v curl >/dev/null || packages+=(curl)
engine_answers || command -v dockerd >/dev/null || packages+=(docker.io)
if ((${#packages[@]})); then
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
fi
if engine_answers; then
    if docker inspect box || docker inspect runcap-box; then
        fail 'a container called box or an image called runcap-box is there already: remove them'
    fi >/dev/null 2>&1
    trap end EXIT
else
    trap end EXIT
    export DOCKER_HOST=unix://$scratch/socket
    # No bridge and no packet filter: these containers have no network.
    dockerd --host "$DOCKER_HOST" --iptables=false --bridge=none --storage-driver vfs \
        --data-root "$scratch/data" --exec-root "$scratch/exec" --pidfile "$scratch/pid" \
        >"$scratch/log" 2>&1 &
    engine=$!
    wait_for "the Docker engine; its log ends: $(tail -n 3 "$scratch/log")" engine_answers
fi

# Lines of README stand here as they stand there, without indentation: a test compares them.

# The image, in the two ways that README shows.
mkdir "$scratch/image"
cp "$binary" "$scratch/image/runcap"
cp /bin/busybox "$scratch/image/busybox"
cd "$scratch/image"
cat >Dockerfile <<'END'
FROM scratch
COPY runcap busybox /
ENTRYPOINT ["/runcap"]
END
# The builder that comes with the engine.
export DOCKER_BUILDKIT=0
built=$(
docker build --tag runcap-box .
docker run --rm --network none runcap-box run --timeout 10s -- /busybox echo hi
)
check 'an image FROM scratch runs' $'*\nhi' "$built"
docker rmi -f runcap-box >/dev/null
tar -c runcap busybox | docker import - runcap-box
docker run -d --name box --memory 32m --network none runcap-box /busybox sleep 3600
state() { docker inspect --format '{{.State.Status}} {{.RestartCount}} {{.State.StartedAt}}' box; }
started=$(state)

# 10 GB through a container of 32 MiB: an answer of 8 MiB, six characters for each byte of it.
docker exec -i box /runcap json >"$scratch/answer" <<'END'
{"command": ["/busybox", "sh", "-c", "echo first; exec dd if=/dev/zero bs=1000000 count=10000"], "timeout": "10m"}
END
check 'one answer' 1 "$(wc -l <"$scratch/answer")"
check '10 GB: the command ran to its end, every byte was counted' \
    '{"status":"exited","exit_code":0,"stdout_bytes":10000000006,"stdout_truncated":true,"stdout_dropped_bytes":9991611398,"stdout_gap_at":8388608,"stdout":"first\\n\\u0000*' \
    "$(head -c 1000 "$scratch/answer")"
check '10 GB: 8 MiB a stream are kept of 32 MiB' \
    '*\\u0000","stderr_bytes":*,"stderr":"10000+0 records in*","cap_lowered_to":8388608,"start_time":*' \
    "$(tail -c 1000 "$scratch/answer")"
check '10 GB: the answer holds what was kept' $((6 * 8388602)) \
    "$(grep -o '\(\\u0000\)\+' "$scratch/answer" | tr -d '\n' | wc -c)"
check 'the container lives on as it was' "$started" "$(state)"

# A command that takes more memory than there is.
check 'the kernel kills the command and not runcap' '{"status":"signaled","exit_code":null,"signal":9,*' \
    "$(docker exec -i box /runcap json <<<'{"command": ["/busybox", "tail", "/dev/zero"], "timeout": "5m"}')"
check 'the container lives on as it was' "$started" "$(state)"

# The recipe of README.
answer=$(
echo '{"command": ["/busybox", "seq", "1000000"], "max_output_size": "1K"}' |
    docker exec -i box /runcap json
)
check 'docker exec -i answers' \
    '{"status":"exited","exit_code":0,"stdout_bytes":6888896,"stdout_truncated":true,"stdout_dropped_bytes":6887872,*' \
    "$answer"

# `runcap run` as the first process of a container.
{
docker run --rm --network none runcap-box /runcap run --max-output-size 1K -- /busybox seq 100000
} >"$scratch/out" 2>"$scratch/err"
check 'run: the first KiB' "$(/bin/busybox seq 100000 | head -c 1024)" "$(cat "$scratch/out")"
check 'run: a line says so' 'runcap: stdout: kept the first 1024 of 588895 bytes' \
    "$(cat "$scratch/err")"
in_box() { docker run --rm --network none "$@"; }
check 'run is PID 1' 1 "$(in_box runcap-box /runcap run -- /busybox sh -c 'echo $PPID')"
code=0
in_box runcap-box /runcap run -- /busybox sh -c 'exit 7' || code=$?
check 'run ends with the exit code of the command' 7 $code
code=0
in_box runcap-box /runcap run --timeout 1 -- /busybox sleep 1000 2>"$scratch/err" || code=$?
check 'run ends with 124 at the deadline' '124 runcap: timed out after 1s' \
    "$code $(cat "$scratch/err")"
check 'json as PID 1' '{"status":"exited","exit_code":0,"stdout_bytes":3,"stdout":"hi\\n",*' \
    "$(in_box -i runcap-box /runcap json <<<'{"command": ["/busybox", "echo", "hi"]}')"
check 'a terminal is the command'"'"'s' $'a terminal\r' \
    "$(in_box -t runcap-box /runcap run -- /busybox sh -c 'test -t 1 && echo a terminal')"

# PID 1 gets the orphans of the whole container, and the signal of docker stop.
docker rm -f box >/dev/null
docker run -d --name box --memory 32m --network none runcap-box \
    /runcap run --grace 20s -- /busybox sh -c 'trap "exit 3" TERM; while :; do /busybox sleep 0.1; done'
for ((i = 0; i < 20; i++)); do
    docker exec box /busybox sh -c '/busybox true & exec /busybox true'
done
sleep 0.5
docker exec box /busybox sh -c 'cat /proc/[0-9]*/status' >"$scratch/processes"
check 'the processes of the container are seen' '*Name:?runcap*' "$(cat "$scratch/processes")"
check 'PID 1 leaves no zombie' 0 "$(grep -c '^State:.Z' "$scratch/processes" || true)"
docker stop --time 60 box >/dev/null
check 'docker stop ends the command in its own way' 'exited 143' \
    "$(docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' box)"
docker rm -f box >/dev/null

# The server as PID 1, asked from outside the container.
mkdir "$scratch/run"
docker run -d --name box --memory 32m --network none --volume "$scratch/run:/run" runcap-box \
    /runcap serve --listen unix:/run/socket
started=$(state)
ask() { curl --silent --max-time 60 --unix-socket "$scratch/run/socket" "$@"; }
answers() { [[ $(ask http://localhost/health) == *'"status":"ok"'* ]]; }
wait_for 'the server in the container' answers
check 'the socket is its owner'"'"'s alone' 600 "$(stat -c %a "$scratch/run/socket")"
check '2 GB that nobody reads are answered' 404 "$(head -c 2000000000 /dev/zero |
    ask --output /dev/null --write-out '%{http_code}' --upload-file - http://localhost/api/x)"
check 'a header of 1 MB is refused' 431 "$( (printf 'X: ' && head -c 1000000 /dev/zero | tr '\0' a) |
    ask --output /dev/null --write-out '%{http_code}' --header @- http://localhost/health || true)"
check 'the server answers, and the container lives on as it was' "ok $started" \
    "$(answers && echo ok) $(state)"
asked=$SECONDS
docker stop --time 60 box >/dev/null
check 'docker stop ends the server within 5 s and with 0' 'exited 0 in time' \
    "$(docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' box) $(
        ((SECONDS - asked <= 6)) && echo in time)"
check 'the path of the socket is gone' no "$([[ -e $scratch/run/socket ]] && echo yes || echo no)"
docker rm -f box >/dev/null

# survives WHAT SCRIPT: a client on this machine does its worst to a server in 64 MiB, which lives on.
# Sets peak_kib, the most memory that the server had.
survives() {
    # A server that died would be started again, and counted.
    docker run -d --name box --memory 64m --network host --restart always --env RUNCAP_TOKEN \
        runcap-box /runcap serve --listen 127.0.0.1:0
    said() { docker logs box 2>&1 | grep -om1 'http://[0-9.:]*'; }
    wait_for 'the server in the container' said
    started=$(state)
    "$python" "$interop/$2" "$(said)" || fail "$(docker logs --tail 20 box 2>&1)"
    check "$1: the container lives on as it was" "$started" "$(state)"
    # Of control groups version 2, or of version 1.
    check "$1: the kernel killed nothing" 'oom_kill 0' "$(docker exec box /busybox sh -c \
        'cd /sys/fs/cgroup; cat memory.events memory/memory.oom_control' 2>/dev/null | grep '^oom_kill ')"
    peak_kib=$(docker exec box /busybox awk '/^VmHWM:/ { print $2 }' /proc/1/status)
    printf '%s: VmHWM %s kB\n' "$1" "$peak_kib"
    docker rm -f box >/dev/null
}

if [[ $python ]]; then
    RUNCAP_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export RUNCAP_TOKEN
    # agentcube-sdk's client, and a gigabyte of output a command.
    survives '18 GiB of output' flood.py
    # A client that takes a megabyte a second of a gigabyte, then all it can get.
    survives '1 GB for a slow reader' slow_reader.py
    check '1 GB for a slow reader: the server had at most 16 MiB' yes \
        "$( ((peak_kib <= 16384)) && echo yes || echo "$peak_kib kB")"
fi

printf 'tests/container.sh: %d passed, 0 failed\n' "$checks"

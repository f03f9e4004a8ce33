# Sourced by the scripts of this folder: where the throw-away Postgres of this checkout is, and as whom it runs.
# shellcheck shell=bash
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

# Postgres refuses to run as root, and whom it runs as instead may not be able to enter this checkout or root's home. So
# its files lie here, told apart by the checkout's path; short too, for a socket's path may have 107 bytes.
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=${COMPASS_POSTGRES_DIR:-/var/tmp/compass-postgres-$(sha256sum <<<"$checkout" | cut -c1-8)}

# as_postgres FOLDER COMMAND…: runs COMMAND in FOLDER, as the user postgres where we are root.
as_postgres() {
  local folder=$1 user=(); shift
  if [ "$(id -u)" = 0 ]; then user=(setpriv --reuid=postgres --regid=postgres --init-groups); fi
  (cd "$folder" && exec "${user[@]}" "$@" 9>&-)
}

# free_port: prints a port of loopback on which nobody listens.
free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  die "no free port on 127.0.0.1 between 20000 and 29999"
}

# within FOLDER: prints the processes that work in FOLDER, a server's with all its children. A process id in a file may
# have gone to somebody else since; this cannot be stale.
within() {
  { find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1" 2>/dev/null || true; } | cut -d/ -f3
}

# end_within FOLDER: ends them, without a goodbye: what they hold is thrown away.
end_within() {
  local pids
  for _ in $(seq 100); do
    pids=$(within "$1")
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086 # a list
    kill -KILL $pids 2>/dev/null || true
    sleep 0.1
  done
  die "processes do not end: $pids"
}

# dsn: prints how a superuser connects.
dsn() { echo "postgres://postgres:$(cat "$dir/password")@127.0.0.1:$(cat "$dir/port")/postgres?sslmode=disable"; }

# Sourced by the scripts below hack/: where things are kept, how progress is said, how Debian packages are had.
# shellcheck shell=bash

# Built programs live outside the repository, so that a fresh clone finds what an earlier one built.
export COMPASS_CACHE=${COMPASS_CACHE:-${HOME:-/root}/.cache/compass}
# Pinned means pinned: no other toolchain, no version control stamps, and no C compiler for what has no need of one.
export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0

# Progress goes to stderr: stdout is for what a caller wants to read (a path, a DSN).
say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { say "error: $*"; exit 1; }

# slow LABEL COMMAND…: runs COMMAND and says every eight seconds that it still does, so that silence always means
# trouble. The ticker watches this shell too: killed without warning, a script leaves nothing behind that talks.
slow() {
  local label=$1 began=$SECONDS status=0; shift
  say "$label …"
  ( while sleep 8 && kill -0 $$ 2>/dev/null; do say "$label … still at it after $((SECONDS - began)) s"; done ) >/dev/null 9>&- &
  local ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  [ "$status" = 0 ] || { say "$label: failed after $((SECONDS - began)) s"; return "$status"; }
  say "$label: done in $((SECONDS - began)) s"
}

# alone NAME: waits until no other script on this machine holds NAME; held until this shell ends, however it ends.
alone() {
  mkdir -p "$COMPASS_CACHE/lock"
  exec 9>"$COMPASS_CACHE/lock/$1"
  flock -n 9 || { say "waiting for another run that holds '$1'"; flock 9; }
}

# debian PROGRAM=PACKAGE…: installs the packages whose PROGRAM (a command, or a path) is missing.
debian() {
  local pair program missing=()
  for pair; do
    program=${pair%%=*}
    { command -v "$program" || [ -e "$program" ]; } >/dev/null || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "install these yourself, this machine has no apt-get: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "needs root to install: ${missing[*]}"
  keep_services_down
  slow "installing ${missing[*]}" apt_install "${missing[@]}"
}

apt_install() {
  local options=(-y -q --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0) # no pty: whole lines
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a >&2 </dev/null 9>&- # what a killed installation left half done
  # An index that is there may do; one that is missing or too old does not.
  apt-get install "${options[@]}" "$@" >&2 </dev/null 9>&- ||
    { apt-get update -q >&2 9>&- && apt-get install "${options[@]}" "$@" >&2 </dev/null 9>&-; }
}

# Debian starts what it installs. invoke-rc.d asks this file first; the answer is no for as long as this shell lives,
# so a run that was killed leaves a file that says yes. Somebody else's policy is left alone.
keep_services_down() {
  local policy=/usr/sbin/policy-rc.d mark='compass: no services while packages are installed'
  if [ -e "$policy" ] && ! grep -q "$mark" "$policy"; then return; fi
  printf '#!/bin/sh\n# %s\n[ -d /proc/%s ] && exit 101\nexit 0\n' "$mark" "$$" >"$policy"
  chmod 755 "$policy"
}

# psql_as DSN ARGUMENT…: psql with the password of DSN in its environment: arguments can be listed.
psql_as() {
  local dsn=$1 password; shift
  password=$(sed -E 's#^[^:]*://[^:]*:([^@]*)@.*#\1#' <<<"$dsn")
  PGPASSWORD=$password psql "${dsn/:$password@/@}" "$@"
}

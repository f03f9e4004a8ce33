# Sourced by the scripts of this folder: where the local cluster is, and how to find it.
# shellcheck shell=bash disable=SC2034 # names for those who source it
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

dir=${COMPASS_CLUSTER_DIR:-/var/lib/compass-cluster} # all that it keeps
ip=10.200.0.1                                        # the node, inside the box
group=$(basename "$dir")                             # the control group of its pods
port=${COMPASS_CLUSTER_PORT:-16443}                  # its API server, on the machine's loopback

# box: prints the process id of the cluster's first process, which every other one of it descends from. It is found by
# what it is, the first process of a pid namespace that runs our node script, so neither a lost file nor a process id
# that was given to somebody else can mislead us.
box() {
  local process argv
  for process in /proc/[0-9]*; do
    mapfile -d '' -t argv 2>/dev/null <"$process/cmdline" || continue
    [[ " ${argv[*]} " == *" $dir/node "* ]] || continue
    grep -q '^NSpid:.*[[:space:]]1$' "$process/status" 2>/dev/null && { echo "${process#/proc/}"; return; }
  done
  return 1
}

# inside COMMAND…: runs COMMAND in the box.
inside() {
  local pid
  pid=$(box) || die "no cluster is up: hack/cluster/up"
  nsenter --target "$pid" --pid --mount --net "$@"
}

# keeps_up: whether the cluster answers and its node is ready.
keeps_up() {
  box >/dev/null && [ -x "$dir/bin/kubectl" ] &&
    "$dir/bin/kubectl" --kubeconfig "$dir/kubeconfig" --request-timeout=5s get node node \
      -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null | grep -qx True
}

# take_down: ends the cluster and removes all that it kept. The caller holds the lock.
take_down() {
  local pid folder
  # One signal is enough: the kernel ends every process of a pid namespace with its first, and with the last of them go
  # their mounts, network namespaces, interfaces and firewall rules.
  while pid=$(box); do
    say "ending the local cluster (process $pid)"
    kill -KILL "$pid" || true
    for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -e "/proc/$pid" ] || die "process $pid does not end"
  done
  # Control groups outlive their processes; innermost first.
  for folder in "/sys/fs/cgroup/$group" /sys/fs/cgroup/*/"$group"; do
    [ -d "$folder" ] || continue
    find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || say "left: $folder"
  done
  [ ! -d "$dir" ] || rm -rf --one-file-system "$dir"
}

#!/usr/bin/env bash
# A TPU VM from the command line of gcloud: a name and a zone in; create it, set AgentJAX up on it, run, delete it.
#
#   launch/tpu_vm.sh create --name=NAME --zone=ZONE --type=v6e-1 --version=v2-alpha-tpuv6e [--spot]
#   launch/tpu_vm.sh setup  --name=NAME --zone=ZONE [--python=python3.11]
#   launch/tpu_vm.sh run    --name=NAME --zone=ZONE -- train --config=quickstart
#   launch/tpu_vm.sh delete --name=NAME --zone=ZONE
#
# --project=ID picks the project, gcloud's own by default. --dry-run prints the commands and runs none.
# `setup` copies the commit that is checked out. `run` is one process, so the slice must have a single host.
# A TPU VM costs money until `delete`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name="" zone="" type="" version="" project="" python=python3.11 spot="" dry_run="" command="" arguments=()

main() {
  read_arguments "$@"
  require name "$name"
  require zone "$zone"
  where=("$name" "--zone=$zone" ${project:+"--project=$project"})
  case $command in
    create) create ;;
    setup) setup ;;
    run) run ;;
    delete) gcloud_tpu delete "${where[@]}" --quiet ;;
  esac
}

read_arguments() {
  command=${1:-}
  case $command in
    create | setup | run | delete) shift ;;
    -h | --help) usage && exit 0 ;;
    *) fail "the first argument must be create, setup, run or delete, got '$command'" ;;
  esac
  while [ $# -gt 0 ]; do
    case $1 in
      --name=*) name=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --type=*) type=${1#*=} ;;
      --version=*) version=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --python=*) python=${1#*=} ;;
      --spot) spot=yes ;;
      --dry-run) dry_run=yes ;;
      --) shift && arguments=("$@") && return ;;
      *) fail "unknown argument '$1'" ;;
    esac
    shift
  done
}

create() {
  require type "$type"
  require version "$version"
  gcloud_tpu create "${where[@]}" "--accelerator-type=$type" "--version=$version" ${spot:+--spot}
}

setup() {
  local archive=${TMPDIR:-/tmp}/agentjax-$name.tar.gz
  step git archive --prefix=agentjax/ -o "$archive" HEAD
  gcloud_tpu scp "$archive" "$name:agentjax.tar.gz" "${where[@]:1}"
  on_vm "tar -xzf agentjax.tar.gz && sudo apt-get update -qq && sudo apt-get install -qq -y bubblewrap $python-venv"
  on_vm "cd agentjax && $python -m venv .venv && .venv/bin/pip install -q -e . 'jax[tpu]'"
  step rm "$archive"
}

run() {
  [ ${#arguments[@]} -gt 0 ] || fail "run needs the arguments of agentjax after --, such as -- train --config=quickstart"
  on_vm "cd agentjax && .venv/bin/agentjax $(printf '%q ' "${arguments[@]}")"
}

on_vm() {
  gcloud_tpu ssh "${where[@]}" "--command=$1"
}

gcloud_tpu() {
  step gcloud compute tpus tpu-vm "$@"
}

# Print a command in a dry run, else run it.
step() {
  if [ -n "$dry_run" ]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

require() {
  [ -n "$2" ] || fail "$command needs --$1=..."
}

usage() {
  sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' launch/tpu_vm.sh
}

fail() {
  echo "tpu_vm.sh: $1" >&2
  echo "launch/tpu_vm.sh --help shows how it is used." >&2
  exit 2
}

main "$@"

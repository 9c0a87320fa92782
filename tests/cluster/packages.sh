#!/usr/bin/env bash
# Installs the Debian packages that the cluster tests and the look at reports run on: idempotent, quick when all are
# there, starts no service.
# Needs root and apt. containerd and prometheus are only used as programs that the harness starts itself.
set -euo pipefail

PACKAGES=(
  containerd runc containernetworking-plugins
  iptables nftables conntrack iproute2
  buildah debootstrap prometheus chromium
  gcc libc6-dev ca-certificates
)

missing=()
for package in "${PACKAGES[@]}"; do
  dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
((${#missing[@]})) || exit 0

if [[ $(id -u) != 0 ]]; then
  echo "cluster packages missing: ${missing[*]}; installing them needs root" >&2
  exit 1
fi

# Debian's contract for "install, but start nothing"; a policy that the machine already has is left alone.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
options=(-qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
echo "installing ${missing[*]}"
apt-get install "${options[@]}" "${missing[@]}" >/dev/null 2>&1 && exit 0
# The package lists are missing or old.
apt-get update -qq
apt-get install "${options[@]}" "${missing[@]}" >/dev/null

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the peers and clients that the tests drive, and gcc for the race
# detector, where they are missing; with "long" those of the long cases, too.
set -euo pipefail
declare -A need=(
  [curl]=curl [nginx]=nginx-light [haproxy]=haproxy [wrk]=wrk [ip]=iproute2
  [knotd]=knot [dnsmasq]=dnsmasq-base [dig]=bind9-dnsutils [dnsperf]=dnsperf [unbound]=unbound [unshare]=util-linux [node]=nodejs [gcc]="gcc libc6-dev"
  [promtool]=prometheus [h2load]=nghttp2-client [openssl]=openssl [gnutls-cli]=gnutls-bin
  [redis-server]=redis-server [sshd]=openssh-server [exim4]=exim4-daemon-light
)
if [ "${1-}" = long ]; then
  need[chromium]=chromium
fi
missing=()
for cmd in "${!need[@]}"; do
  command -v "$cmd" >/dev/null || [ -x "/usr/sbin/$cmd" ] || missing+=(${need[$cmd]}) # one or more
done
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql) # is not where programs are looked for
[ -e /usr/lib/python3/dist-packages/websockets ] || missing+=(python3-websockets)
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing+=(libnginx-mod-stream) # no program tells
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" != 0 ]; then
  echo "missing: ${missing[*]}; install them (apt-get install ${missing[*]}) or run as root" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]} (Debian's names); install them" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Services that the packages would start are not wanted: the tests run their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
case " ${missing[*]} " in *" gcc "*) missing+=(libc6-dev) ;; esac
apt-get install -y -qq --no-install-recommends "${missing[@]}"

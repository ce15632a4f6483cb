#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of the module for the given time, one after another.
set -euo pipefail
time=${1:-10m}
grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -c6- | sort -u); do
    echo "== $dir $target $time"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir" </dev/null
  done
done

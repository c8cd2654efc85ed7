#!/bin/sh
# A night on a board, for cron: see jetson.crontab. Prints, so that cron mails it, only where something is wrong.
#
# $INT8 (or ~/int8) holds trt-bisect.toml and .venv. The first night makes the baseline there; to accept what is worse:
#     cd ~/int8 && .venv/bin/trt-bisect regress --baseline baseline --update-baseline
set -u
umask 022
PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/cuda/bin
LC_ALL=C.UTF-8
export PATH LC_ALL

DAYS=60  # that logs and nights are kept; the baseline is apart from them and stays

cd "${INT8:-$HOME/int8}" || exit 2
mkdir -p log || exit 2
exec 9>log/lock
if ! flock -n 9; then
    echo "Last night's run is still going on in $PWD: none tonight."
    exit 2
fi

log="log/$(date -u +%Y-%m-%dT%H%M%SZ).log"
update=
[ -d baseline ] || update=--update-baseline
.venv/bin/trt-bisect regress --config trt-bisect.toml --baseline baseline $update >"$log" 2>&1 9>&-
code=$?

find log -name '*.log' -mtime "+$DAYS" -delete
[ ! -d nightly ] || find nightly -mindepth 1 -maxdepth 1 -type d -mtime "+$DAYS" -exec rm -rf {} +

if [ "$code" -ne 0 ]; then
    echo "trt-bisect regress ended with exit code $code on $(uname -n); $PWD/$log says:"
    tail -n 40 "$log"
fi
exit "$code"

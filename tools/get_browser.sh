#!/usr/bin/env bash
# Debian's Chromium for the tests of the page, where apt-get may install it. Without one those tests are skipped,
# or fail where TRT_BISECT_BROWSER=required.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "No Chromium here, and apt-get cannot be used: the tests of the page in a browser will be skipped." >&2
    exit 0
fi
apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
    || echo "Chromium could not be installed: the tests of the page in a browser will be skipped." >&2

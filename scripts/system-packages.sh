#!/bin/sh
# What the tests need from the system: looked for by what it provides, installed only if missing and
# only if we may. Usage: system-packages.sh [PYTHON]
set -eu

python=${1:-python3}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
missing=

need() { # need PACKAGE command...: the package, unless the command succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

need gcc command -v cc
need pkg-config command -v pkg-config
need libmariadb-dev sh -c 'pkg-config --exists libmariadb || pkg-config --exists mysqlclient'
need mariadb-server-core command -v mariadbd
need mariadb-client-core sh -c 'command -v mariadb && command -v my_print_defaults'
need redis-server command -v redis-server
need nginx-light command -v nginx
need chromium command -v chromium
need nodejs command -v node
need npm command -v npm
need fonts-noto-cjk sh -c 'ls /usr/share/fonts/*/*oto*CJK* || ls /usr/share/fonts/*/*/*oto*CJK*'
need python3-dev "$python" -c '
import os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))'
need python3-venv "$python" -c 'import ensurepip, venv'

[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2086 # one word per package
    if { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "these packages could not be installed:$missing" >&2
    exit 1
fi

echo "The tests run on real servers and a real browser. Missing here:" >&2
echo "    apt-get install --no-install-recommends$missing" >&2
echo "(or their like on another system; as root, make test does it itself)" >&2
exit 1

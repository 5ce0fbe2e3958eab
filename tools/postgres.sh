#!/usr/bin/env bash
# Checks that PostgreSQL's server binaries are installed, and installs them if it can. The
# tests start a private cluster with them and use no service of the system.
set -euo pipefail
[ -n "${ANIMA_TEST_POSTGRES_URL:-}" ] && exit 0
command -v initdb >/dev/null 2>&1 && exit 0
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  echo "installing PostgreSQL for the store suites"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null
  ls /usr/lib/postgresql/*/bin/initdb >/dev/null && exit 0
fi
cat >&2 <<'TXT'
PostgreSQL's server binaries (initdb, postgres) are not on this machine, and the
store suites run on it too. Install them, for example
  sudo apt-get install postgresql      (Debian, Ubuntu)
  brew install postgresql              (macOS)
or point ANIMA_TEST_POSTGRES_URL at a cluster on which databases may be created.
TXT
exit 1

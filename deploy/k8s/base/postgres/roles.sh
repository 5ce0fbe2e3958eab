#!/bin/bash
# Makes a role and a schema for each service, with the name and password of the
# service's own URL. The image runs it once, when it makes the database. Run again
# in the pod, it gives every role the password that its URL has now.
set -euo pipefail

for file in /secrets/roles/*; do
  IFS= read -r url <"$file" || [ -n "$url" ] # a line without an end is one
  # What matches can be written between quotes as it is.
  if ! [[ $url =~ ^postgres(ql)?://([a-z_][a-z0-9_]*):([A-Za-z0-9_-]+)@ ]]; then
    echo "$file: want postgres://ROLE:PASSWORD@…, and a password of letters, digits, - and _ only" >&2
    exit 1
  fi
  role=${BASH_REMATCH[2]} password=${BASH_REMATCH[3]}
  psql --quiet --no-psqlrc -v ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" <<SQL
set client_min_messages = warning;
select 'create role "$role"' where not exists (select from pg_roles where rolname = '$role') \gexec
alter role "$role" login password '$password';
create schema if not exists "$role" authorization "$role";
SQL
done

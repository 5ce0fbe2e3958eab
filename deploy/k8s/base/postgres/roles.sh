#!/bin/bash
# Creates a role and a schema for each service, with the name and password of the
# service's URL. The image runs it once, when it creates the database. When it is run
# again in the pod, it sets the password of every role to that of its URL.
set -euo pipefail

for file in /secrets/roles/*; do
  IFS= read -r url <"$file" || [ -n "$url" ] # the last line may have no newline
  # A name or password that matches needs no escaping in a quoted literal.
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

# Runs a Postgres server for as long as standard input stays open.
# usage: warden BIN DIR SYNC   BIN: folder of initdb and pg_ctl; DIR: an empty folder;
# SYNC: on or off, whether what is committed is synced to the disk
bin=$1 dir=$2 sync=$3
stop() {
  # A client that has connected and says nothing can delay the end for a minute.
  "$bin/pg_ctl" -D "$dir/data" -m immediate -w -t 5 stop >/dev/null 2>&1 ||
    kill -9 "$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null)" 2>/dev/null
  rm -rf "$dir"
}
trap stop EXIT
trap 'exit 1' HUP INT TERM
"$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$dir/log" 2>&1 &&
  "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 -o "-c listen_addresses= \
    -c unix_socket_directories='$dir' -c max_connections=300 -c autovacuum=off \
    -c fsync=$sync -c synchronous_commit=$sync -c full_page_writes=$sync" start >>"$dir/log" 2>&1 </dev/null ||
  { cat "$dir/log"; exit 1; }
trap '' PIPE # the reader of stdout may have exited
echo ready
read -r _
exit 0

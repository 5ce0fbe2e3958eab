// Command postgres is the first process of the lab's PostgreSQL image. It has the
// settings of the official image, so that the same manifests work with both:
//
//	POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB, POSTGRES_INITDB_ARGS, each also
//	with _FILE; POSTGRES_HOST_AUTH_METHOD; PGDATA; scripts (*.sh, *.sql, *.sql.gz)
//	in /docker-entrypoint-initdb.d, in the order of their names, once
//
// It creates the cluster in PGDATA if that is empty, and then executes the server. After
// an interrupted first start it begins again: the cluster is created in a folder beside
// PGDATA and moved when it is complete. It must not run as root.
package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	initDir   = "/docker-entrypoint-initdb.d"
	socketDir = "/var/run/postgresql"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		args = append([]string{"postgres"}, args...)
	}
	if args[0] == "postgres" {
		if os.Geteuid() == 0 {
			return errors.New("PostgreSQL refuses to run as root; set runAsUser, for example 70")
		}
		data := get("PGDATA", "/var/lib/postgresql/data")
		if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); errors.Is(err, fs.ErrNotExist) {
			if err := create(ctx, data, args[1:]); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		// A volume's fsGroup may have opened the folder to its group, which the server
		// refuses. If the mode cannot be changed, the server reports the fault.
		_ = os.Chmod(data, 0o700)
		args = append(args, "-D", data)
		if !writable(socketDir) { // the root file system is read-only and has no volume there
			args = append(args, "-c", "unix_socket_directories=/tmp")
		}
		if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "listen_addresses") }) {
			args = append(args, "-c", "listen_addresses=*")
		}
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}

// create creates a new cluster. Until its last step the data is in a folder beside its
// final place, so that a partial cluster is never used.
func create(ctx context.Context, data string, args []string) error {
	user := get("POSTGRES_USER", "postgres")
	db := get("POSTGRES_DB", user)
	password, err := secret("POSTGRES_PASSWORD")
	if err != nil {
		return err
	}
	method := get("POSTGRES_HOST_AUTH_METHOD", "scram-sha-256")
	if password == "" && method != "trust" {
		return errors.New("set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE, or POSTGRES_HOST_AUTH_METHOD=trust")
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(data, ".new")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	initdb := []string{"-D", tmp, "--username=" + user, "--auth-local=trust", "--auth-host=" + method}
	if password != "" {
		f, err := os.CreateTemp("", "pw")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(f.Name()) }()
		if _, err := f.WriteString(password + "\n"); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		initdb = append(initdb, "--pwfile="+f.Name())
	}
	more := strings.Fields(get("POSTGRES_INITDB_ARGS", ""))
	if err := call(ctx, nil, nil, "initdb", append(initdb, more...)...); err != nil {
		return err
	}
	hba, err := os.OpenFile(filepath.Join(tmp, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(hba, "host all all all %s\n", method)
	if err := errors.Join(err, hba.Close()); err != nil {
		return err
	}
	if err := scripts(ctx, tmp, user, db, password, args); err != nil {
		return err
	}
	es, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	// PG_VERSION marks an existing cluster, so it is moved last.
	slices.SortFunc(es, func(a, b fs.DirEntry) int { return last(a) - last(b) })
	for _, e := range es {
		at := filepath.Join(data, e.Name())
		if err := os.RemoveAll(at); err != nil { // of an interrupted move
			return err
		}
		if err := os.Rename(filepath.Join(tmp, e.Name()), at); err != nil {
			return err
		}
	}
	return os.Remove(tmp)
}

func last(e fs.DirEntry) int {
	if e.Name() == "PG_VERSION" {
		return 1
	}
	return 0
}

// scripts starts a server that only this process can reach, creates the database and runs
// the scripts in initDir.
func scripts(ctx context.Context, data, user, db, password string, args []string) error {
	sock, err := os.MkdirTemp("", "s")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(sock) }()
	opts := append(slices.Clone(args), "-c", "listen_addresses=", "-c", "unix_socket_directories="+sock)
	for i, o := range opts {
		opts[i] = "'" + strings.ReplaceAll(o, "'", `'\''`) + "'"
	}
	if err := call(ctx, nil, nil, "pg_ctl", "-D", data, "-w", "-o", strings.Join(opts, " "), "start"); err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = call(ctx, nil, nil, "pg_ctl", "-D", data, "-m", "immediate", "stop")
		}
	}()
	env := []string{"PGHOST=" + sock, "PGUSER=" + user, "POSTGRES_USER=" + user, "POSTGRES_DB=" + db, "PGPASSWORD=" + password}
	if db != "postgres" {
		sql := `CREATE DATABASE "` + strings.ReplaceAll(db, `"`, `""`) + `";`
		if err := call(ctx, env, strings.NewReader(sql), "psql", "-v", "ON_ERROR_STOP=1", "-d", "postgres"); err != nil {
			return err
		}
	}
	es, err := os.ReadDir(initDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range es {
		path := filepath.Join(initDir, e.Name())
		st, err := os.Stat(path) // follows the links of a ConfigMap
		if err != nil {
			return err
		}
		if st.IsDir() {
			continue
		}
		fmt.Println("postgres: running", path)
		if err := script(ctx, append(env, "PGDATABASE="+db), path, st.Mode()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	stopped = true
	return call(ctx, nil, nil, "pg_ctl", "-D", data, "-m", "fast", "-w", "stop")
}

func script(ctx context.Context, env []string, path string, mode fs.FileMode) error {
	switch {
	case strings.HasSuffix(path, ".sh") && mode&0o111 != 0:
		return call(ctx, env, nil, path)
	case strings.HasSuffix(path, ".sh"):
		return call(ctx, env, nil, "bash", path)
	case strings.HasSuffix(path, ".sql"), strings.HasSuffix(path, ".sql.gz"):
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		var in io.Reader = f
		if strings.HasSuffix(path, ".gz") {
			if in, err = gzip.NewReader(f); err != nil {
				return err
			}
		}
		return call(ctx, env, in, "psql", "-v", "ON_ERROR_STOP=1", "--no-psqlrc")
	default:
		fmt.Println("postgres: not a script:", path)
		return nil
	}
}

func call(ctx context.Context, env []string, in io.Reader, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	c.Stdin, c.Stdout, c.Stderr = in, os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// get returns a setting, or the content of the file that NAME_FILE names, or the default.
func get(name, def string) string {
	if v, err := secret(name); err == nil && v != "" {
		return v
	}
	return def
}

func secret(name string) (string, error) {
	if v := os.Getenv(name); v != "" {
		return v, nil
	}
	file := os.Getenv(name + "_FILE")
	if file == "" {
		return "", nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	return strings.TrimRight(string(raw), "\r\n"), nil
}

func writable(dir string) bool { return syscall.Access(dir, 2) == nil }

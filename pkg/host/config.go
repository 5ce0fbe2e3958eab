package host

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Values of Config.Sync: when an acknowledged write is on the disk
// (docs/reference/platform.md, Store marks). With interval, a power failure may lose the
// writes of the last two minutes; a crash of the process loses none.
const (
	SyncAlways   = "always"
	SyncInterval = "interval"
)

// Values of Config.Migrate: whether the service or the argument migrate runs the
// migrations.
const (
	MigrateAuto = "auto"
	MigrateWait = "wait"
)

// Config holds the settings that all services share; a service adds its own.
type Config struct {
	NATSURL      string        `env:"nats_url" help:"NATS servers, separated by commas"`
	NATSToken    config.Secret `env:"nats_token" help:"token for NATS"`
	NATSCreds    string        `env:"nats_creds" help:"path of a NATS credentials file"`
	NATSNKey     config.Secret `env:"nats_nkey" help:"seed of the service's NATS user"`
	NATSCA       string        `env:"nats_ca" help:"path of the CA certificates for tls:// servers; empty: those of the system"`
	Replicas     int           `env:"nats_replicas" help:"replicas of streams and of the coordination bucket: 1, 3 or 5"`
	Data         string        `env:"data" help:"folder for databases, keys and workspaces"`
	DiskReserve  int64         `env:"disk_reserve" help:"MiB of the data folder's disk that are reserved for work in progress: with less free, no work is accepted and no command is run; 0: 256, or a tenth of a smaller disk; -1: none"`
	DatabaseURL  config.Secret `env:"database_url" help:"postgres://… for all services (a schema each); empty: an SQLite file each in the data folder"`
	Migrate      string        `env:"migrate" oneof:"auto|wait" help:"how the schema is migrated: auto, by the service at its start; wait, by a separate run with the argument migrate, and the service is not ready until then"`
	AcceptLoss   string        `env:"accept_loss" help:"start although the stores do not agree, and record the loss: a time such as 2026-11-22T15:04:05Z, valid for one hour before and after it (anima up --accept-loss sets the current time)"`
	Sync         string        `env:"sync" oneof:"always|interval" help:"when writes are synced to the disk: always, or interval (embedded NATS and SQLite only; a power cut may lose the last two minutes)"`
	HTTPAddr     string        `env:"http_addr" help:"address of the HTTP surface"`
	ReadTimeout  time.Duration `env:"http_read_timeout" help:"how long an HTTP request, with its body, may take to arrive"`
	WriteTimeout time.Duration `env:"http_write_timeout" help:"how long a client may take to receive each 64 KiB of an answer"`
	OpsAddr      string        `env:"ops_addr" help:"address of /healthz, /readyz and /metrics; empty: none"`
	Token        config.Secret `env:"token" help:"operator's token, required by the HTTP surface"`
	Hosts        []string      `env:"hosts" help:"host names that the HTTP surface accepts, besides loopback and its own address; empty on a public address: any"`
	Drain        time.Duration `env:"drain" help:"time limit for work in progress after a signal to stop"`
	Log          string        `env:"log" help:"debug, info, warn or error"`
	LogFormat    string        `env:"log_format" help:"json or text"`

	StatementSpans bool `env:"sql_statement_spans" help:"trace each SQL statement of a transaction, besides the transaction"`

	// Installation is the id of the data folder, in which one process at a time runs all
	// services on its own NATS server. It is empty for services on a shared NATS. It is
	// not a setting: anima up reads it from the folder.
	Installation string
}

// Defaults returns the defaults of a service that runs alone.
func Defaults() Config {
	return Config{
		NATSURL: "nats://127.0.0.1:4222", Replicas: 1, Data: "data", Migrate: MigrateAuto, Sync: SyncAlways,
		HTTPAddr: ":8080", ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, OpsAddr: ":9090", Drain: 30 * time.Second, Log: "info", LogFormat: "json",
	}
}

// Validate returns an error for a value that has the right type and is not allowed.
func (c *Config) Validate() error {
	switch {
	case c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5:
		return fmt.Errorf("ANIMA_NATS_REPLICAS is %d: use 1, 3 or 5", c.Replicas)
	case c.Drain < 0:
		return fmt.Errorf("ANIMA_DRAIN is %s: it cannot be negative", c.Drain)
	case c.DiskReserve < -1 || c.DiskReserve > 1<<30:
		return fmt.Errorf("ANIMA_DISK_RESERVE is %d: use a number of MiB, 0 for the default or -1 for none", c.DiskReserve)
	case c.ReadTimeout <= 0:
		return fmt.Errorf("ANIMA_HTTP_READ_TIMEOUT is %s: name a positive time", c.ReadTimeout)
	case c.WriteTimeout <= 0:
		return fmt.Errorf("ANIMA_HTTP_WRITE_TIMEOUT is %s: name a positive time", c.WriteTimeout)
	case c.AcceptLoss != "" && notTime(c.AcceptLoss):
		return fmt.Errorf("ANIMA_ACCEPT_LOSS is %.40q: use the time at which you accept it, as in 2026-11-22T15:04:05Z", c.AcceptLoss)
	case c.Data == "":
		return fmt.Errorf("ANIMA_DATA is empty: name a folder")
	}
	if url := c.DatabaseURL.Reveal(); url != "" {
		if err := sqldb.CheckPostgres(url); err != nil {
			return fmt.Errorf("ANIMA_DATABASE_URL: %w", err)
		}
	}
	return nil
}

func notTime(s string) bool {
	_, err := time.Parse(time.RFC3339, s)
	return err != nil
}

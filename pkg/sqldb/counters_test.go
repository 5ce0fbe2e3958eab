package sqldb_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// TestStatsAreShown checks that the meters export the values of Stats until the database
// is closed.
func TestStatsAreShown(t *testing.T) {
	t.Parallel()
	for engine, url := range map[sqldb.Engine]string{
		sqldb.SQLite: "sqlite:" + t.TempDir() + "/x.db", sqldb.Postgres: sqldbtest.Postgres(t),
	} {
		reader := sdkmetric.NewManualReader()
		db, err := sqldb.Open(t.Context(), url, sqldb.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
		if err != nil {
			t.Fatal(err)
		}
		shown := func() map[string]int64 {
			var page metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &page); err != nil {
				t.Fatal(err)
			}
			all := map[string]int64{}
			for _, s := range page.ScopeMetrics {
				for _, m := range s.Metrics {
					for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
						all[m.Name] += p.Value
					}
				}
			}
			return all
		}
		exec(t, db, "create table t (id bigint)")
		exec(t, db, "insert into t (id) values ($1)", 1)
		s := db.Stats()
		want := map[string]int64{"anima.sql.statements": s.Statements, "anima.sql.commits": s.Commits, "anima.sql.flights": s.Flights}
		if d := cmp.Diff(want, shown()); d != "" || s.Statements < 2 || s.Commits < 2 || (s.Flights >= 2) != (engine == sqldb.Postgres) {
			t.Errorf("%s: stats are %+v (-want +shown):\n%s", engine, s, d)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		if got := shown(); len(got) > 0 {
			t.Errorf("%s: shown after Close: %v", engine, got)
		}
	}
}

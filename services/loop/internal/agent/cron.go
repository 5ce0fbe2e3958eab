package agent

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

// parseCron validates an expression as [api.ParseCron] does, and refuses one that never
// fires.
func parseCron(text string) (string, error) {
	clean, err := api.ParseCron(text)
	if err != nil {
		return "", err
	}
	schedule, err := cron.ParseStandard(clean)
	if err != nil {
		return "", err
	}
	// The start date is arbitrary but fixed: Next searches five years ahead, and an
	// expression that ever matches does so within this time.
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return "", fmt.Errorf("%q never occurs; check day of month and month", frontmatter.Clip(clean))
	}
	return clean, nil
}

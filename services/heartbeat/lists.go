package heartbeat

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// routes adds heartbeat's HTTP routes.
func (h *handlers) routes(r host.Routes) {
	r.Handle("GET /v1/schedule", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.GetSchedule, error) {
		return api.GetSchedule{Agent: strings.ToLower(r.URL.Query().Get("agent"))}, nil
	}, h.getSchedule))
	r.Handle("GET /v1/schedule/history", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListTicks, error) {
		limit, err := host.Limit(r)
		q := r.URL.Query()
		return api.ListTicks{Agent: strings.ToLower(q.Get("agent")), After: q.Get("after"), Limit: limit}, err
	}, h.listTicks))
	r.Handle("POST /v1/agents/{id}/schedule/{name}/run", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.RunBeat, error) {
		id := r.Header.Get("Idempotency-Key")
		if id == "" {
			id = rand.Text()
		}
		return api.RunBeat{Agent: r.PathValue("id"), Name: r.PathValue("name"), ID: id}, nil
	}, h.runBeat))
}

// runBeat publishes the wake that an entry of the schedule causes when it is due. It does
// not advance the entry. It is idempotent while the history has the request: a repeated
// request publishes the same wake, which loop recognises by its cause and time.
func (h *handlers) runBeat(ctx context.Context, m api.RunBeat) (api.Wake, error) {
	agent := strings.ToLower(m.Agent)
	cause := "beat-" + m.ID
	if m.ID == "" || !api.ValidKey(cause) || !api.ValidKey(agent) {
		return api.Wake{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("agent %.130q or id %.130q is not a key", m.Agent, m.ID), Next: "use 1 to 120 of letters, digits, - and _",
		}
	}
	entries, err := h.store.Schedule(ctx, agent)
	if err != nil {
		return api.Wake{}, err
	}
	i := slices.IndexFunc(entries, func(b schedule.Entry) bool { return b.Name == m.Name })
	if i < 0 {
		return api.Wake{}, &api.Error{Code: api.NotFound, Message: fmt.Sprintf("%s has no entry %.80q in its schedule", agent, m.Name), Next: "anima heartbeat list " + agent + " shows the entries"}
	}
	now := h.now().UTC()
	tick, err := h.store.Record(ctx, cause, schedule.Tick{Agent: agent, Name: m.Name, Due: now, At: now})
	if err != nil {
		return api.Wake{}, err
	}
	if tick.Name != m.Name {
		return api.Wake{}, &api.Error{
			Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: fmt.Sprintf("the idempotency key was used for the entry %q", tick.Name), Next: "use another key for each request",
		}
	}
	h.tel.wake(ctx, "creator")
	w := wakeOf(schedule.Due{Agent: agent, Name: m.Name, Reason: entries[i].Reason, At: tick.At})
	w.Cause = cause
	return h.wake(ctx, w)
}

// listTicks pages by time: the cursor is the time of the last entry, and the number of
// entries of that time that were listed.
func (h *handlers) listTicks(ctx context.Context, m api.ListTicks) (api.Ticks, error) {
	limit, err := api.PageLimit(m.Limit, 50)
	if err != nil {
		return api.Ticks{}, err
	}
	until, skip, err := tickPlace(m.After)
	if err != nil {
		return api.Ticks{}, err
	}
	ticks, err := h.store.History(ctx, m.Agent, until, skip, limit+1)
	var all []api.Ticked
	for _, t := range ticks {
		all = append(all, api.Ticked{Agent: t.Agent, Name: t.Name, Due: t.Due.UnixMicro(), At: t.At.UnixMicro()})
	}
	all, page := api.CutPage(all, limit, func(t api.Ticked) string { return strconv.FormatInt(t.At, 10) })
	if page.Next != "" {
		same := 0
		for same < len(all) && all[len(all)-1-same].At == all[len(all)-1].At {
			same++
		}
		if same == len(all) && schedule.Micros(until) == all[0].At {
			same += skip
		}
		page.Next += "." + strconv.Itoa(same)
	}
	return api.Ticks{Ticks: all, Page: page}, err
}

func tickPlace(after string) (until time.Time, skip int, err error) {
	if after == "" {
		return time.Time{}, 0, nil
	}
	at, n, _ := strings.Cut(after, ".")
	when, aerr := strconv.ParseInt(at, 10, 64)
	skip, nerr := strconv.Atoi(n)
	if aerr != nil || nerr != nil || when < 1 || skip < 0 {
		return time.Time{}, 0, api.NotInList(after)
	}
	return time.UnixMicro(when).UTC(), skip, nil
}

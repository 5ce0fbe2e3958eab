package api

import "fmt"

// A list has at most Limit entries and at most 700 KiB of them. Limit is 1 to
// [MaxPage]; 0 is the list's own default. What is cut off is announced by [Page].

// MaxPage is the largest limit of a list.
const MaxPage = 1000

// maxPageBytes bounds the entries of one answer: NATS carries 1 MiB.
const maxPageBytes = 700 << 10

// Page says whether a list goes on. Lists embed it; the zero value is a list that
// is complete.
type Page struct {
	More bool   `json:"more,omitempty"` // the list goes on
	Next string `json:"next,omitempty"` // After of the next request; "" where only a larger Limit shows more
}

// PageLimit returns the limit of a list, otherwise for 0. Errors: Invalid.
func PageLimit(limit, otherwise int) (int, error) {
	switch {
	case limit == 0:
		return otherwise, nil
	case limit < 0 || limit > MaxPage:
		return 0, &Error{Code: Invalid, Message: fmt.Sprintf("a limit of %d", limit), Next: fmt.Sprintf("ask for 1 to %d", MaxPage)}
	}
	return limit, nil
}

// CutPage keeps the first entries of a list, at most limit of them and at least
// one. The caller has read one entry more than limit. key is the After that goes
// on behind an entry; nil is a list without one.
func CutPage[T any](all []T, limit int, key func(T) string) ([]T, Page) {
	keep, size := 0, 0
	for keep < len(all) && keep < limit {
		data, err := Encode(all[keep])
		if size += len(data); err == nil && size > maxPageBytes && keep > 0 {
			break
		}
		keep++
	}
	switch {
	case all == nil:
		return []T{}, Page{}
	case keep == len(all):
		return all, Page{}
	case key == nil || keep == 0:
		return all[:keep], Page{More: true}
	}
	return all[:keep], Page{More: true, Next: key(all[keep-1])}
}

package api

import (
	"fmt"
	"strconv"
)

// A list has at most Limit entries and at most 700 KiB of encoded entries, but at least
// one entry. Limit is 1 to [MaxPage]; 0 means the default of the list. [Page] reports
// whether entries were cut off.

// MaxPage is the largest limit of a list.
const MaxPage = 1000

// maxPageBytes is the limit of the encoded entries of one answer, in bytes. By default a
// NATS server accepts messages of 1 MiB, and the rest is for the other fields.
const maxPageBytes = 700 << 10

// Page reports whether a list has more entries. Lists embed it. The zero value means
// that the list is complete.
type Page struct {
	More bool   `json:"more,omitempty"` // there are more entries
	Next string `json:"next,omitempty"` // After of the next request; "" if only a larger Limit returns more
}

// PageLimit returns the effective limit of a list: limit, or otherwise if limit is 0.
// Errors: Invalid, if limit is negative or above [MaxPage].
func PageLimit(limit, otherwise int) (int, error) {
	switch {
	case limit == 0:
		return otherwise, nil
	case limit < 0 || limit > MaxPage:
		return 0, &Error{Code: Invalid, Message: fmt.Sprintf("limit %d is out of range", limit), Next: fmt.Sprintf("ask for 1 to %d", MaxPage)}
	}
	return limit, nil
}

// NotInList returns the error of a list whose After is not one that a page returned.
func NotInList(after string) error {
	return &Error{Code: Invalid, Message: strconv.Quote(after) + " is not a position in this list", Next: "use the position that the previous page returned, or leave it out"}
}

// CutPage returns the first entries of a list: at most limit entries and 700 KiB, but
// at least one entry. The caller reads one entry more than limit so that CutPage can
// see whether there are more. key returns the After that continues behind an entry; it
// is nil for a list without After. The returned slice is not nil.
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

package sqldb

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// pgRows holds the rows of a query.
type pgRows struct {
	pgRow
	rows  pgx.Rows
	ahead bool // begin has read the first row, or the end if first is false, and next has not returned it yet
	first bool
	end   func() // called once, after the rows are closed
}

// begin reads the first row; after an error the rows are closed.
func (r *pgRows) begin() (err error) {
	if r.first, err = r.next(); err != nil {
		r.close()
		return err
	}
	r.ahead = true
	return nil
}

func (r *pgRows) next() (bool, error) {
	if r.ahead {
		r.ahead = false
		return r.first, nil
	}
	if !r.rows.Next() {
		return false, r.rows.Err()
	}
	r.pgRow = pgRow{r.rows.FieldDescriptions(), r.rows.RawValues(), r.rows.Conn().TypeMap()}
	return true, nil
}

func (r *pgRows) close() {
	if r.end == nil {
		return
	}
	r.rows.Close()
	end := r.end
	r.end = nil
	end()
}

// one scans the first row and closes the rows.
func (r *pgRows) one(dest []any) error {
	found, err := r.next()
	if found {
		err = scanRow(r, dest)
	}
	r.close()
	switch {
	case err != nil:
		return err
	case r.rows.Err() != nil: // an error after the first row
		return r.rows.Err()
	case !found:
		return errNoRow
	}
	return nil
}

// pgRow is a row in the encoding of the server.
type pgRow struct {
	fields []pgconn.FieldDescription
	raw    [][]byte
	types  *pgtype.Map
}

func (r *pgRow) count() int { return len(r.raw) }

func (r *pgRow) kind(i int) kind {
	if r.raw[i] == nil {
		return null
	}
	switch r.fields[i].DataTypeOID {
	case pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID, pgtype.OIDOID, pgtype.BoolOID:
		return integer
	case pgtype.Float8OID, pgtype.Float4OID:
		return real
	case pgtype.ByteaOID:
		return blob
	default:
		return text
	}
}

func (r *pgRow) binary(i int) bool { return r.fields[i].Format == pgtype.BinaryFormatCode }

func (r *pgRow) integer(i int) int64 {
	b := r.raw[i]
	if !r.binary(i) {
		if r.fields[i].DataTypeOID == pgtype.BoolOID {
			return map[string]int64{"t": 1}[string(b)]
		}
		n, _ := strconv.ParseInt(string(b), 10, 64) // cannot fail: the server encoded the digits
		return n
	}
	switch len(b) {
	case 1:
		return int64(b[0])
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		if r.fields[i].DataTypeOID == pgtype.OIDOID {
			return int64(binary.BigEndian.Uint32(b))
		}
		return int64(int32(binary.BigEndian.Uint32(b)))
	default:
		return int64(binary.BigEndian.Uint64(b))
	}
}

func (r *pgRow) real(i int) float64 {
	b := r.raw[i]
	switch {
	case !r.binary(i):
		f, _ := strconv.ParseFloat(string(b), 64) // cannot fail: the server encoded the digits
		return f
	case len(b) == 4:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	default:
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	}
}

func (r *pgRow) text(i int, was string) string {
	b := r.raw[i]
	switch oid := r.fields[i].DataTypeOID; oid {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.NameOID, pgtype.BPCharOID, pgtype.UnknownOID, pgtype.QCharOID, pgtype.JSONOID:
	case pgtype.ByteaOID:
		return string(r.bytes(i))
	default:
		if r.binary(i) {
			var s string
			if err := r.types.Scan(oid, pgtype.BinaryFormatCode, b, &s); err == nil {
				return s
			}
		}
	}
	if string(b) == was {
		return was
	}
	return string(b)
}

func (r *pgRow) bytes(i int) []byte {
	b := r.raw[i]
	if r.fields[i].DataTypeOID != pgtype.ByteaOID {
		return []byte(r.text(i, ""))
	}
	if hexed, ok := strings.CutPrefix(string(b), `\x`); ok && !r.binary(i) {
		b, _ = hex.DecodeString(hexed) // cannot fail: the server encoded the digits
		return b
	}
	return append([]byte{}, b...)
}

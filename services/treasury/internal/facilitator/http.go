package facilitator

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// maxRequest is the limit of the body of a request, in bytes: a payment and its offer.
const maxRequest = 64 << 10

// ServeVerify answers POST /x402/verify.
func (f *Facilitator) ServeVerify(w http.ResponseWriter, r *http.Request) {
	o, err := readOrder(w, r)
	if err != nil {
		write(w, http.StatusBadRequest, x402.Verdict{Reason: x402.ReasonOf(err, x402.BadPayload), Text: err.Error()})
		return
	}
	v, err := f.Verify(r.Context(), o)
	if err != nil {
		f.log.WarnContext(r.Context(), "payment not verified", "err", err)
		write(w, http.StatusInternalServerError, x402.Verdict{Reason: x402.VerifyError, Payer: o.Payment.Authorization.From.Hex()})
		return
	}
	write(w, http.StatusOK, v)
}

// ServeSettle answers POST /x402/settle.
func (f *Facilitator) ServeSettle(w http.ResponseWriter, r *http.Request) {
	o, err := readOrder(w, r)
	if err != nil {
		write(w, http.StatusBadRequest, x402.Receipt{Reason: x402.ReasonOf(err, x402.BadPayload)})
		return
	}
	receipt, err := f.Settle(r.Context(), o)
	if err != nil {
		receipt = f.refusal(&o, x402.SettleError)
		write(w, http.StatusInternalServerError, receipt)
		return
	}
	write(w, http.StatusOK, receipt)
}

// ServeSupported answers GET /x402/supported.
func (f *Facilitator) ServeSupported(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, f.Supported())
}

func readOrder(w http.ResponseWriter, r *http.Request) (x402.Order, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return x402.Order{}, &x402.Fault{Reason: x402.BadPayload, Text: "the body is too large or did not arrive"}
	}
	return x402.DecodeOrder(data)
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

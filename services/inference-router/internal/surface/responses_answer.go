package surface

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// responsesAnswer is a response. The fields without a value of the router are those that
// clients read.
type responsesAnswer struct {
	ID                 string           `json:"id"`
	Object             string           `json:"object"`
	CreatedAt          int64            `json:"created_at"`
	Status             string           `json:"status"`
	Model              string           `json:"model"`
	Output             []responsesItem  `json:"output"`
	Usage              *responsesUsage  `json:"usage"`
	Error              *responsesError  `json:"error"`
	IncompleteDetails  *responsesReason `json:"incomplete_details"`
	Instructions       *string          `json:"instructions"`
	PreviousResponseID *string          `json:"previous_response_id"`
	ParallelToolCalls  bool             `json:"parallel_tool_calls"`
	ToolChoice         string           `json:"tool_choice"`
	Tools              []any            `json:"tools"`
	Metadata           struct{}         `json:"metadata"`
	Store              bool             `json:"store"`
}

type responsesError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type responsesReason struct {
	Reason string `json:"reason"`
}

// responsesItem is a message, a call or the reasoning of an answer.
type responsesItem struct {
	Type      string           `json:"type"`
	ID        string           `json:"id"`
	Status    string           `json:"status"`
	Role      string           `json:"role,omitempty"`
	Content   *[]responsesPart `json:"content,omitempty"` // of a message
	CallID    string           `json:"call_id,omitempty"`
	Name      string           `json:"name,omitempty"`
	Arguments *string          `json:"arguments,omitempty"` // of a call
	Summary   *[]responsesPart `json:"summary,omitempty"`   // of reasoning
}

// responsesPart is a text or a refusal.
type responsesPart struct {
	Type        string  `json:"type"`
	Text        *string `json:"text,omitempty"`
	Refusal     *string `json:"refusal,omitempty"`
	Annotations *[]any  `json:"annotations,omitempty"`
}

type responsesUsage struct {
	Input        int64 `json:"input_tokens"`
	InputDetails struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	Output        int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

// Statuses of responses and their items.
const (
	responseCompleted  = "completed"
	responseIncomplete = "incomplete"
	responseFailed     = "failed"
	responseInProgress = "in_progress"
)

func responsesHead(head Head, status string) responsesAnswer {
	return responsesAnswer{
		ID: responseID(head), Object: "response", CreatedAt: head.Created, Status: status, Model: head.Model, Output: []responsesItem{},
		ParallelToolCalls: true, ToolChoice: provider.ToolsAuto, Tools: []any{},
	}
}

func responseID(head Head) string { return "resp_" + head.ID }

// responsesText returns the part with a text of an answer.
func responsesText(text string, refusal bool) responsesPart {
	if refusal {
		return responsesPart{Type: "refusal", Refusal: &text}
	}
	return responsesPart{Type: "output_text", Text: &text, Annotations: &[]any{}}
}

func responsesMessage(head Head, status string, content ...responsesPart) responsesItem {
	if content == nil {
		content = []responsesPart{}
	}
	return responsesItem{Type: "message", ID: "msg_" + head.ID, Status: status, Role: provider.Assistant, Content: &content}
}

func responsesCall(head Head, i int, c api.ToolCall, status, arguments string) responsesItem {
	return responsesItem{Type: "function_call", ID: "fc_" + strconv.Itoa(i) + "_" + head.ID, Status: status, CallID: c.ID, Name: c.Name, Arguments: &arguments}
}

// responsesReasoning returns the item of the reasoning. It is the last one, because in a
// stream it is known only after the text.
func responsesReasoning(head Head, text string) responsesItem {
	item := responsesItem{Type: "reasoning", ID: "rs_" + head.ID, Status: responseCompleted, Summary: &[]responsesPart{}}
	if text != "" {
		*item.Summary = append(*item.Summary, responsesPart{Type: "summary_text", Text: &text})
	}
	return item
}

// responsesOf returns the whole response of a completion.
func responsesOf(head Head, c api.Completion) responsesAnswer {
	a := responsesHead(head, responseCompleted)
	a.Model = c.Model
	switch c.Finish {
	case api.FinishLength, api.FinishTimeout, api.FinishRepetition:
		a.Status, a.IncompleteDetails = responseIncomplete, &responsesReason{"max_output_tokens"}
	case api.FinishFilter:
		a.Status, a.IncompleteDetails = responseIncomplete, &responsesReason{"content_filter"}
	}
	if c.Text != "" || len(c.ToolCalls) == 0 {
		a.Output = append(a.Output, responsesMessage(head, a.Status, responsesText(c.Text, c.Finish == api.FinishRefusal)))
	}
	for i, call := range c.ToolCalls {
		a.Output = append(a.Output, responsesCall(head, i, call, responseCompleted, argumentsOf(call)))
	}
	if c.Reasoning != "" {
		a.Output = append(a.Output, responsesReasoning(head, c.Reasoning))
	}
	a.Usage = &responsesUsage{Input: c.InputTokens, Output: c.OutputTokens, Total: c.InputTokens + c.OutputTokens}
	a.Usage.InputDetails.Cached, a.Usage.InputDetails.CacheWrite, a.Usage.OutputDetails.Reasoning = c.CachedTokens, c.CacheWrite, c.ReasonTokens
	return a
}

// Answer implements [Dialect].
func (Responses) Answer(w http.ResponseWriter, head Head, c api.Completion) {
	write(w, http.StatusOK, responsesOf(head, c))
}

// Refuse implements [Dialect].
func (Responses) Refuse(w http.ResponseWriter, status int, err error) {
	OpenAI{}.Refuse(w, status, err)
}

// Stream implements [Dialect].
func (Responses) Stream(w http.ResponseWriter, head Head) Stream {
	return &responsesStream{events: events{w: w}, head: head}
}

// responsesStream writes the events of a response. It sends the text as it comes, and
// calls, which are complete only at the end, each in one piece.
type responsesStream struct {
	events

	head    Head
	number  int // of the next event
	message bool
}

// responsesEvent has the fields of all events.
type responsesEvent struct {
	Type     string           `json:"type"`
	Number   int              `json:"sequence_number"`
	Response *responsesAnswer `json:"response,omitempty"`

	OutputIndex  *int            `json:"output_index,omitempty"`
	ContentIndex *int            `json:"content_index,omitempty"`
	SummaryIndex *int            `json:"summary_index,omitempty"`
	ItemID       string          `json:"item_id,omitempty"`
	Item         *responsesItem  `json:"item,omitempty"`
	Part         *responsesPart  `json:"part,omitempty"`
	Delta        *string         `json:"delta,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Arguments    *string         `json:"arguments,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs,omitempty"`
}

func (s *responsesStream) event(e responsesEvent) error {
	e.Number = s.number
	s.number++
	return s.send(e.Type, e)
}

// all sends events until one fails.
func (s *responsesStream) all(events ...responsesEvent) error {
	for _, e := range events {
		if err := s.event(e); err != nil {
			return err
		}
	}
	return nil
}

// begin sends the head of the response before the first event.
func (s *responsesStream) begin() error {
	if s.begun {
		return nil
	}
	head := responsesHead(s.head, responseInProgress)
	return s.all(responsesEvent{Type: "response.created", Response: &head}, responsesEvent{Type: "response.in_progress", Response: &head})
}

// open begins the message.
func (s *responsesStream) open() error {
	if s.message {
		return nil
	}
	s.message = true
	item, part := responsesMessage(s.head, responseInProgress), responsesText("", false)
	return s.all(responsesEvent{Type: "response.output_item.added", OutputIndex: new(0), Item: &item},
		responsesEvent{Type: "response.content_part.added", OutputIndex: new(0), ContentIndex: new(0), ItemID: item.ID, Part: &part})
}

func (s *responsesStream) Text(piece string) error {
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	return s.event(responsesEvent{
		Type: "response.output_text.delta", OutputIndex: new(0), ContentIndex: new(0), ItemID: responsesMessage(s.head, "").ID, Delta: &piece,
		Logprobs: json.RawMessage("[]"),
	})
}

// End ends the response. A refusal is a text, because its pieces were sent as a text
// before it was known to be one.
func (s *responsesStream) End(c api.Completion) error {
	if err := s.begin(); err != nil {
		return err
	}
	if c.Finish == api.FinishRefusal {
		c.Finish = api.FinishStop
	}
	whole := responsesOf(s.head, c)
	for i := range whole.Output {
		item := &whole.Output[i]
		end := s.endMessage
		switch {
		case item.Summary != nil:
			end = s.reasoning
		case item.Content == nil:
			end = s.call
		}
		if err := end(i, item); err != nil {
			return err
		}
		if err := s.event(responsesEvent{Type: "response.output_item.done", OutputIndex: &i, Item: item}); err != nil {
			return err
		}
	}
	return s.event(responsesEvent{Type: "response." + whole.Status, Response: &whole})
}

func (s *responsesStream) endMessage(i int, item *responsesItem) error {
	if err := s.open(); err != nil {
		return err
	}
	part := &(*item.Content)[0]
	return s.all(
		responsesEvent{
			Type: "response.output_text.done", OutputIndex: &i, ContentIndex: new(0), ItemID: item.ID, Text: part.Text, Logprobs: json.RawMessage("[]"),
		},
		responsesEvent{Type: "response.content_part.done", OutputIndex: &i, ContentIndex: new(0), ItemID: item.ID, Part: part})
}

func (s *responsesStream) call(i int, item *responsesItem) error {
	added := *item
	added.Status, added.Arguments = responseInProgress, new("")
	return s.all(responsesEvent{Type: "response.output_item.added", OutputIndex: &i, Item: &added},
		responsesEvent{Type: "response.function_call_arguments.delta", OutputIndex: &i, ItemID: item.ID, Delta: item.Arguments},
		responsesEvent{Type: "response.function_call_arguments.done", OutputIndex: &i, ItemID: item.ID, Arguments: item.Arguments})
}

func (s *responsesStream) reasoning(i int, item *responsesItem) error {
	added, part := responsesReasoning(s.head, ""), &(*item.Summary)[0]
	text := part.Text
	return s.all(responsesEvent{Type: "response.output_item.added", OutputIndex: &i, Item: &added},
		responsesEvent{Type: "response.reasoning_summary_part.added", OutputIndex: &i, SummaryIndex: new(0), ItemID: item.ID, Part: &responsesPart{Type: part.Type, Text: new("")}},
		responsesEvent{Type: "response.reasoning_summary_text.delta", OutputIndex: &i, SummaryIndex: new(0), ItemID: item.ID, Delta: text},
		responsesEvent{Type: "response.reasoning_summary_text.done", OutputIndex: &i, SummaryIndex: new(0), ItemID: item.ID, Text: text},
		responsesEvent{Type: "response.reasoning_summary_part.done", OutputIndex: &i, SummaryIndex: new(0), ItemID: item.ID, Part: part})
}

// Fail ends the response with the status failed. No event with another status follows.
func (s *responsesStream) Fail(_ int, err error) error {
	if err := s.begin(); err != nil {
		return err
	}
	failed := responsesHead(s.head, responseFailed)
	code := "server_error"
	if reason := api.ReasonOf(err); reason == api.ReasonLimit || api.OverLimit(reason) {
		code = "rate_limit_exceeded"
	}
	failed.Error = &responsesError{Code: code, Message: message(err)}
	return s.event(responsesEvent{Type: "response.failed", Response: &failed})
}

package logitport

// #include <logitport.h>
import "C"

import (
	"encoding/json"
	"fmt"
	"unsafe"
)

// StepRequest is a request of a step.
type StepRequest struct {
	Handle Handle
	NewIDs []int32 // ids that joined its history since its last step; none in its first step
	// DraftIDs are ids that a speculating engine has not accepted yet. They do not join the history: accepted ones are
	// new ids of the next step.
	DraftIDs []int32
	// DraftParents has for each draft the index of the draft that it follows, less than its own; -1 if it follows the
	// history. Nil: each follows the one before it.
	DraftParents []int32
}

// Row is a row of the logits.
type Row struct {
	Request int // its index in the step
	// DraftOffset is 0 for a row that sees the history, and j for one that sees the history, the ancestors of draft
	// j - 1, and that draft.
	DraftOffset int
}

// Step is a step that was begun.
type Step struct {
	Rows    int // of the logits
	session *Session
}

// Result is the result of a step.
type Result struct {
	Failures      map[Handle]*Error // end these requests; their rows are unspecified
	Skipped       map[Handle]*Error // failed requests with SkipsOnError; their rows are unchanged
	AllDeniedRows []int             // rows in which edits have denied every id: do not sample from them
	Applied       map[string]int    // rows by processor
	Events        []Event
}

// Event is what a processor reports: docs/reports.md.
type Event struct {
	Handle      Handle
	Processor   string
	Position    int // in the output, of the id that the row samples
	DraftOffset int // of the row, if it is not the number of drafts that the row has seen
	Name        string
	Values      json.RawMessage // an object, or nil
	LeftOut     int             // number of further events, if Name is empty
}

// Step sends a step, and returns at once: the server works while the forward pass runs. A request that is left out
// keeps its state. A step that was begun, and not applied, is dropped.
//
// Rows are those of the logits. Nil: the requests in order, each with a row, and one row more for each of its drafts.
// An id outside of the vocabulary fails its request, in Apply.
func (s *Session) Step(requests []StepRequest, rows []Row) (*Step, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	made := array[C.logitport_step_request](&s.arena, len(requests))
	for index := range requests {
		one, request := &made[index], &requests[index]
		if request.DraftParents != nil && len(request.DraftParents) != len(request.DraftIDs) {
			return nil, &Error{InvalidArgument, fmt.Sprintf(
				"request %d has %d drafts and %d parents", index, len(request.DraftIDs), len(request.DraftParents))}
		}
		one.handle = C.logitport_handle(request.Handle)
		one.new_ids, one.new_id_count = s.arena.ids(request.NewIDs)
		one.draft_ids, one.draft_id_count = s.arena.ids(request.DraftIDs)
		one.draft_parents, _ = s.arena.ids(request.DraftParents)
	}
	var madeRows *C.logitport_row
	if rows != nil {
		// One more than the rows: an empty list is not the default.
		all := array[C.logitport_row](&s.arena, len(rows)+1)
		for index, row := range rows {
			if row.Request < 0 || row.Request >= len(requests) {
				return nil, &Error{InvalidArgument, fmt.Sprintf(
					"row %d is of request %d, in a step of %d requests", index, row.Request, len(requests))}
			}
			all[index] = C.logitport_row{
				request: C.uint32_t(row.Request), draft_offset: C.int32_t(row.DraftOffset),
			}
		}
		madeRows = &all[0]
	}
	count := array[C.size_t](&s.arena, 1)
	count[0] = C.size_t(len(rows))
	s.step = nil
	if err := s.check(C.logitport_begin(s.pointer, first(made), C.size_t(len(made)), madeRows, &count[0])); err != nil {
		return nil, err
	}
	s.step = &Step{Rows: int(count[0]), session: s}
	return s.step, nil
}

// Apply receives the edits of the step, and applies them to Rows × VocabSize logits, in place. Requests may have failed
// without an error: look at the result. InvalidArgument leaves the logits unchanged, and Apply may be called again.
func (s *Step) Apply(logits []float32) (*Result, error) {
	return s.apply(unsafe.Pointer(first(logits)), len(logits)*4, 4)
}

// ApplyBits is Apply for the bits of Float16 and BFloat16.
func (s *Step) ApplyBits(logits []uint16) (*Result, error) {
	return s.apply(unsafe.Pointer(first(logits)), len(logits)*2, 2)
}

// ApplyBuffer is Apply for the memory of Session.LogitsBuffer.
func (s *Step) ApplyBuffer(logits []byte) (*Result, error) {
	return s.apply(unsafe.Pointer(first(logits)), len(logits), s.session.options.Datatype.size())
}

// apply takes the number of bytes of the logits, and of an element.
func (s *Step) apply(logits unsafe.Pointer, bytes, element int) (*Result, error) {
	session := s.session
	if err := session.begin(); err != nil {
		return nil, err
	}
	defer session.mutex.Unlock()
	if session.step != s {
		return nil, &Error{InvalidArgument, "the step was applied, or another one was begun"}
	}
	size := session.options.Datatype.size()
	if element != size || bytes != s.Rows*session.width*size {
		return nil, &Error{InvalidArgument, fmt.Sprintf(
			"%d bytes of logits, of elements of %d: the step has %d rows of %d elements of %d",
			bytes, element, s.Rows, session.width, size)}
	}
	found := array[C.logitport_result](&session.arena, 1)
	found[0].size = C.sizeof_logitport_result
	stride := C.size_t(session.width * size)
	code := C.logitport_apply(session.pointer, logits, C.size_t(s.Rows), stride, &found[0])
	if err := session.check(code); err != nil {
		return nil, err
	}
	session.step = nil
	return resultOf(&found[0]), nil
}

func resultOf(found *C.logitport_result) *Result {
	result := &Result{Failures: map[Handle]*Error{}, Skipped: map[Handle]*Error{}, Applied: map[string]int{}}
	for _, one := range unsafe.Slice(found.failures, int(found.failure_count)) {
		failures := result.Failures
		if one.skipped != 0 {
			failures = result.Skipped
		}
		failures[Handle(one.handle)] = &Error{Code(one.code), goText(one.message)}
	}
	for _, row := range unsafe.Slice(found.all_denied_rows, int(found.all_denied_row_count)) {
		result.AllDeniedRows = append(result.AllDeniedRows, int(row))
	}
	for _, one := range unsafe.Slice(found.applied, int(found.applied_count)) {
		result.Applied[goText(one.processor)] = int(one.rows)
	}
	for _, one := range unsafe.Slice(found.events, int(found.event_count)) {
		event := Event{
			Handle: Handle(one.handle), Processor: goText(one.processor), Position: int(one.position),
			DraftOffset: int(one.draft_offset), Name: goText(one.name), LeftOut: int(one.left_out),
		}
		if one.values.size != 0 {
			event.Values = json.RawMessage(goText(one.values))
		}
		result.Events = append(result.Events, event)
	}
	return result
}

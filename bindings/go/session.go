// Package logitport runs logit processors for an inference engine, by liblogitport.
//
// A Session is the persistent batch of one engine. The loop: Add each new request with its history; Step before the
// forward pass, with the ids that were sampled last; Apply after it, which edits the logits in place; sample; Remove
// each request that has ended.
//
// Sessions are safe for concurrent use: calls wait for each other. Cancel does not wait.
package logitport

/*
#cgo pkg-config: logitport
#include <logitport.h>
#include <stdlib.h>
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// Datatype is the datatype of logits.
type Datatype int32

// Datatypes of logits. The bits of Float16 and BFloat16 are uint16 in Go.
const (
	Float32  Datatype = C.LOGITPORT_FLOAT32
	Float16  Datatype = C.LOGITPORT_FLOAT16
	BFloat16 Datatype = C.LOGITPORT_BFLOAT16
)

func (d Datatype) size() int {
	if d == Float32 {
		return 4
	}
	return 2
}

// Options describe a session. VocabSize is required.
type Options struct {
	VocabSize      int // width of the logits, with padding
	Datatype       Datatype
	EOSTokenIDs    []int32
	MaxDraftTokens int           // of a request in one step
	MaxRequests    int           // 0: the server's limit
	TokenizerID    string        // of the operator's tokenizer, for grammars and texts
	ModelName      string        // for the operator's lists
	Engine         string        // the same, such as "my-engine 1.2"
	Token          string        // of an authenticated caller
	Timeout        time.Duration // of a server or a reply; 0: 60 s
	Reconnect      time.Duration // how long a call tries to reconnect; 0: Timeout; negative: never
}

// Processor names a processor, with its parameters: see Builtin, Named, Digest and Payload.
type Processor struct {
	naming C.int32_t
	name   string
	params any
}

// Builtin names a built-in, such as "thinking_budget". Params is a value that encoding/json converts to an object, or
// nil.
func Builtin(name string, params any) Processor { return Processor{C.LOGITPORT_BUILTIN, name, params} }

// Named names a registered processor, such as "team/ban-french:v2".
func Named(name string, params any) Processor { return Processor{C.LOGITPORT_NAME, name, params} }

// Digest names a registered processor by its 64 hexadecimal digits.
func Digest(digest string, params any) Processor {
	return Processor{C.LOGITPORT_DIGEST, digest, params}
}

// Payload has the JSON of a shipped processor.
func Payload(payload string, params any) Processor {
	return Processor{C.LOGITPORT_PAYLOAD, payload, params}
}

// Request is a request of the engine, with its whole history.
type Request struct {
	PromptIDs      []int32
	OutputIDs      []int32     // ids that were sampled before, if the request continues
	Processors     []Processor // in execution order
	RequestID      string
	SamplingParams any // the engine's; a value that encoding/json converts to an object, or nil
	Tenant         string
	SkipsOnError   bool // a failing processor leaves the rows unchanged, and the request continues
}

// Handle is a request that a session holds. 0 is none.
type Handle uint64

// Admission is the result for one request of AddAll.
type Admission struct {
	Handle      Handle
	ReadsLogits bool  // the server edits the logits of this request itself: see Session.LogitsBuffer
	Err         error // a *Error if the request was refused
}

// Session is a persistent batch. Close it after use; a session that is garbage-collected is closed, too.
type Session struct {
	mutex   sync.Mutex   // of all calls but Cancel
	alive   sync.RWMutex // held for writing while the pointer is freed
	pointer *C.logitport_session
	arena   arena
	step    *Step // the last one that was begun
	width   int
	options Options
}

// Version returns the version of the library.
func Version() string { return C.GoString(C.logitport_version()) }

// Open opens a session with a server of this host: HOST:PORT with a loopback address, or unix:PATH.
func Open(target string, options Options) (*Session, error) {
	return open(options, func(a *arena, made *C.logitport_options, found **C.logitport_session, text *C.char, size C.size_t) C.int32_t {
		return C.logitport_open(a.text(target), made, found, text, size)
	})
}

// OpenEmbedded opens a session in this process, without a server, for the built-ins that logitport.h lists.
func OpenEmbedded(options Options) (*Session, error) {
	return open(options, func(_ *arena, made *C.logitport_options, found **C.logitport_session, text *C.char, size C.size_t) C.int32_t {
		return C.logitport_open_embedded(made, found, text, size)
	})
}

const maxMessage = 4096

func open(options Options, call func(*arena, *C.logitport_options, **C.logitport_session, *C.char, C.size_t) C.int32_t) (*Session, error) {
	for name, value := range map[string]int{
		"VocabSize": options.VocabSize, "MaxDraftTokens": options.MaxDraftTokens, "MaxRequests": options.MaxRequests,
	} {
		if value < math.MinInt32 || value > math.MaxInt32 {
			return nil, &Error{InvalidArgument, fmt.Sprintf("Options.%s is %d: it must be an int32", name, value)}
		}
	}
	var a arena
	defer a.free()
	made := &array[C.logitport_options](&a, 1)[0]
	made.size = C.sizeof_logitport_options
	made.vocab_size = C.int32_t(options.VocabSize)
	made.datatype = C.int32_t(options.Datatype)
	made.eos_token_ids, made.eos_token_id_count = a.ids(options.EOSTokenIDs)
	made.max_draft_tokens = C.int32_t(options.MaxDraftTokens)
	made.max_requests = C.int32_t(options.MaxRequests)
	made.tokenizer_id = a.text(options.TokenizerID)
	made.model_name = a.text(options.ModelName)
	made.engine = a.text(options.Engine)
	made.token = a.text(options.Token)
	made.timeout_seconds = C.double(options.Timeout.Seconds())
	made.reconnect_seconds = C.double(options.Reconnect.Seconds())
	found := &array[*C.logitport_session](&a, 1)[0]
	text := &array[C.char](&a, maxMessage)[0]
	if code := call(&a, made, found, text, maxMessage); code != C.LOGITPORT_OK {
		return nil, &Error{Code(code), C.GoString(text)}
	}
	session := &Session{pointer: *found, width: options.VocabSize, options: options}
	runtime.SetFinalizer(session, (*Session).Close)
	return session, nil
}

// Close ends the session. It waits for calls that run: Cancel ends them. It may be called twice.
func (s *Session) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.alive.Lock()
	defer s.alive.Unlock()
	if s.pointer != nil {
		C.logitport_close(s.pointer)
		s.pointer = nil
		s.arena.free()
		runtime.SetFinalizer(s, nil)
	}
	return nil
}

// Cancel ends the connection: calls that wait, and all later ones, return Unavailable. Only Close is useful then.
func (s *Session) Cancel() {
	s.alive.RLock()
	defer s.alive.RUnlock()
	if s.pointer != nil {
		C.logitport_cancel(s.pointer)
	}
}

// begin locks the session for a call. The caller unlocks it, unless there is an error.
func (s *Session) begin() error {
	s.mutex.Lock()
	if s.pointer == nil {
		s.mutex.Unlock()
		return &Error{SessionClosed, "the session is closed: open another one"}
	}
	s.arena.reset()
	return nil
}

// check converts the code of a call.
func (s *Session) check(code C.int32_t) error {
	if code == C.LOGITPORT_OK {
		return nil
	}
	return &Error{Code(code), goText(C.logitport_error(s.pointer))}
}

// Add admits a request. It waits for the server's reply.
func (s *Session) Add(request Request) (Admission, error) {
	admissions, err := s.AddAll([]Request{request})
	if err != nil {
		return Admission{}, err
	}
	return admissions[0], admissions[0].Err
}

// AddAll admits requests together. A refused one does not affect the others: see Admission.Err. The error is one that
// is no request's own, such as Unavailable; none is admitted then.
func (s *Session) AddAll(requests []Request) ([]Admission, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	made := array[C.logitport_request](&s.arena, len(requests))
	for index := range requests {
		if err := s.fill(&made[index], &requests[index]); err != nil {
			return nil, err
		}
	}
	results := array[C.logitport_admission](&s.arena, len(requests))
	code := C.logitport_add(s.pointer, first(made), C.size_t(len(made)), first(results))
	admissions := make([]Admission, len(results))
	isOwn := false
	for index := range results {
		one := &results[index]
		admissions[index] = Admission{Handle: Handle(one.handle), ReadsLogits: one.reads_logits != 0}
		if one.code != C.LOGITPORT_OK {
			isOwn = true
			admissions[index].Err = &Error{Code(one.code), goText(one.message)}
		}
	}
	if code != C.LOGITPORT_OK && !isOwn {
		return nil, s.check(code)
	}
	return admissions, nil
}

func (s *Session) fill(made *C.logitport_request, request *Request) error {
	made.size = C.sizeof_logitport_request
	made.prompt_ids, made.prompt_id_count = s.arena.ids(request.PromptIDs)
	made.output_ids, made.output_id_count = s.arena.ids(request.OutputIDs)
	chain := array[C.logitport_processor](&s.arena, len(request.Processors))
	for index, processor := range request.Processors {
		params, err := object(processor.params)
		if err != nil {
			return &Error{InvalidArgument, fmt.Sprintf("parameters of processor %d (%s): %v", index, processor.name, err)}
		}
		chain[index] = C.logitport_processor{
			naming: processor.naming, name: s.arena.text(processor.name), params: s.arena.text(params),
		}
	}
	made.processors, made.processor_count = first(chain), C.size_t(len(chain))
	params, err := object(request.SamplingParams)
	if err != nil {
		return &Error{InvalidArgument, fmt.Sprintf("SamplingParams: %v", err)}
	}
	made.sampling_params = s.arena.text(params)
	made.request_id = s.arena.text(request.RequestID)
	made.tenant = s.arena.text(request.Tenant)
	if request.SkipsOnError {
		made.skips_on_error = 1
	}
	return nil
}

// object converts a value to JSON; nil is an empty text, for which the library takes {}.
func object(value any) (string, error) {
	if value == nil {
		return "", nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// Remove drops requests. It does not wait. It drops none if the session does not hold one of them.
func (s *Session) Remove(handles ...Handle) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	made := array[C.logitport_handle](&s.arena, len(handles))
	for index, handle := range handles {
		made[index] = C.logitport_handle(handle)
	}
	return s.check(C.logitport_remove(s.pointer, first(made), C.size_t(len(made))))
}

// Rewind cuts the history of a request back to length ids, but not into its prompt.
func (s *Session) Rewind(handle Handle, length int) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	return s.check(C.logitport_rewind(s.pointer, C.logitport_handle(handle), C.int64_t(length)))
}

// HistoryLength returns the number of ids of a request's history.
func (s *Session) HistoryLength(handle Handle) (int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	defer s.mutex.Unlock()
	length := array[C.int64_t](&s.arena, 1)
	err := s.check(C.logitport_history_length(s.pointer, C.logitport_handle(handle), &length[0]))
	return int(length[0]), err
}

// LogitsBuffer returns memory for logits, rows × VocabSize elements of the session's datatype, that is shared with the
// server: processors that read logits then edit them there, and Apply copies none.
//
// Call it before each forward pass, and do not use what it returned after the next Add, or after Close: the memory is
// not Go's.
func (s *Session) LogitsBuffer(rows int) ([]byte, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	if rows < 0 {
		return nil, &Error{InvalidArgument, fmt.Sprintf("rows is %d: it must not be negative", rows)}
	}
	memory := array[unsafe.Pointer](&s.arena, 1)
	if err := s.check(C.logitport_logits_buffer(s.pointer, C.size_t(rows), &memory[0], nil)); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(memory[0]), rows*s.width*s.options.Datatype.size()), nil
}

// Stats are counts of a session.
type Stats struct {
	Reconnects uint64
	Resyncs    uint64 // histories that were sent again, because the server's differed
	Requests   uint64 // that the session holds
}

// Stats returns the counts of the session.
func (s *Session) Stats() (Stats, error) {
	if err := s.begin(); err != nil {
		return Stats{}, err
	}
	defer s.mutex.Unlock()
	made := array[C.logitport_stats](&s.arena, 1)
	made[0].size = C.sizeof_logitport_stats
	err := s.check(C.logitport_stats_of(s.pointer, &made[0]))
	return Stats{uint64(made[0].reconnects), uint64(made[0].resyncs), uint64(made[0].requests)}, err
}

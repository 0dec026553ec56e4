package logitport

// #include <logitport.h>
import "C"

import "fmt"

// Code classifies an error, as in docs/protocol.md. A Code is an error itself, for errors.Is(err, logitport.NotFound).
type Code int32

// The codes of the protocol, and Unavailable. A server may send later ones.
const (
	Internal             Code = C.LOGITPORT_INTERNAL
	InvalidArgument      Code = C.LOGITPORT_INVALID_ARGUMENT
	LimitExceeded        Code = C.LOGITPORT_LIMIT_EXCEEDED
	NotAuthenticated     Code = C.LOGITPORT_NOT_AUTHENTICATED
	NotPermitted         Code = C.LOGITPORT_NOT_PERMITTED
	NotFound             Code = C.LOGITPORT_NOT_FOUND
	NameTaken            Code = C.LOGITPORT_NAME_TAKEN
	InvalidPayload       Code = C.LOGITPORT_INVALID_PAYLOAD
	PayloadNotAllowed    Code = C.LOGITPORT_PAYLOAD_NOT_ALLOWED
	PythonMismatch       Code = C.LOGITPORT_PYTHON_MISMATCH
	ProcessorFailed      Code = C.LOGITPORT_PROCESSOR_FAILED
	ProcessorTimedOut    Code = C.LOGITPORT_PROCESSOR_TIMED_OUT
	ProcessorQuarantined Code = C.LOGITPORT_PROCESSOR_QUARANTINED
	NeedSync             Code = C.LOGITPORT_NEED_SYNC
	StateLost            Code = C.LOGITPORT_STATE_LOST
	SessionClosed        Code = C.LOGITPORT_SESSION_CLOSED
	// Unavailable: the server cannot be reached, has not replied in time, or the session was cancelled.
	Unavailable Code = C.LOGITPORT_UNAVAILABLE
)

var codeNames = map[Code]string{
	Internal: "internal", InvalidArgument: "invalid argument", LimitExceeded: "limit exceeded",
	NotAuthenticated: "not authenticated", NotPermitted: "not permitted", NotFound: "not found",
	NameTaken: "name taken", InvalidPayload: "invalid payload", PayloadNotAllowed: "payload not allowed",
	PythonMismatch: "Python mismatch", ProcessorFailed: "processor failed",
	ProcessorTimedOut: "processor timed out", ProcessorQuarantined: "processor quarantined",
	NeedSync: "need sync", StateLost: "state lost", SessionClosed: "session closed", Unavailable: "unavailable",
}

// Error returns the name of the code.
func (c Code) Error() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return fmt.Sprintf("code %d", int32(c))
}

// Error is what calls return: errors.As(err, &e) with e a *Error gives its code and message.
type Error struct {
	Code    Code
	Message string // what was wrong, where, and what to do
}

// Error returns the code and the message.
func (e *Error) Error() string { return "logitport: " + e.Code.Error() + ": " + e.Message }

// Is reports whether target is the error's code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

package logitport

import (
	"errors"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const width = 40

// everywhere runs a test with a session of each place: embedded, and with the server that LOGITPORT_TEST_TARGET names, if it is set.
func everywhere(t *testing.T, options Options, test func(t *testing.T, session *Session)) {
	places := map[string]func() (*Session, error){"embedded": func() (*Session, error) { return OpenEmbedded(options) }}
	if target := os.Getenv("LOGITPORT_TEST_TARGET"); target != "" {
		places["server"] = func() (*Session, error) { return Open(target, options) }
	}
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			session, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			test(t, session)
		})
	}
}

func banning(ids ...int) Processor {
	return Builtin("disallowed_tokens", map[string]any{"token_ids": ids})
}

func mustAdd(t *testing.T, session *Session, request Request) Handle {
	t.Helper()
	admission, err := session.Add(request)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Handle
}

func mustStep(t *testing.T, session *Session, rows []Row, requests ...StepRequest) *Step {
	t.Helper()
	step, err := session.Step(requests, rows)
	if err != nil {
		t.Fatal(err)
	}
	return step
}

func denied(logits []float32) []int {
	var found []int
	for id, value := range logits {
		if math.IsInf(float64(value), -1) {
			found = append(found, id)
		}
	}
	return found
}

func equal(a []int, b ...int) bool {
	if len(a) != len(b) {
		return false
	}
	for index := range a {
		if a[index] != b[index] {
			return false
		}
	}
	return true
}

func TestStepsDraftsAndRows(t *testing.T) {
	everywhere(t, Options{VocabSize: width, MaxDraftTokens: 3}, func(t *testing.T, session *Session) {
		pairs := Builtin("no_repeat_ngram", map[string]int{"ngram_size": 2})
		a := mustAdd(t, session, Request{PromptIDs: []int32{1, 2}, Processors: []Processor{pairs}})
		b := mustAdd(t, session, Request{Processors: []Processor{banning(3, 5)}})
		step := mustStep(t, session, nil, StepRequest{Handle: a, NewIDs: []int32{1}}, StepRequest{Handle: b})
		logits := make([]float32, step.Rows*width)
		result, err := step.Apply(logits)
		if err != nil || len(result.Failures) != 0 {
			t.Fatal(err, result)
		}
		if !equal(denied(logits[:width]), 2) || !equal(denied(logits[width:]), 3, 5) {
			t.Fatal(denied(logits[:width]), denied(logits[width:]))
		}
		if result.Applied["no_repeat_ngram"] != 1 || result.Applied["disallowed_tokens"] != 1 {
			t.Fatal(result.Applied)
		}
		tree := StepRequest{Handle: a, DraftIDs: []int32{2, 4, 1}, DraftParents: []int32{-1, -1, 0}}
		rows := []Row{{0, 3}, {0, 2}, {0, 1}}
		step = mustStep(t, session, rows, tree)
		logits = make([]float32, step.Rows*width)
		if _, err := step.Apply(logits); err != nil {
			t.Fatal(err)
		}
		// After 1, 2, 1, 2, 1 comes no 2; after 1, 2, 1, 4 anything; after 1, 2, 1, 2 no 1.
		for row, id := range map[int]int{0: 2, 2: 1} {
			if !equal(denied(logits[row*width:(row+1)*width]), id) {
				t.Fatal(row, denied(logits[row*width:(row+1)*width]))
			}
		}
		if len(denied(logits[width:2*width])) != 0 {
			t.Fatal("the row of the other branch has a denied id")
		}
		length, err := session.HistoryLength(a)
		if err != nil || length != 3 {
			t.Fatal(length, err)
		}
		if err := session.Rewind(a, 2); err != nil {
			t.Fatal(err)
		}
		if err := session.Remove(a, b); err != nil {
			t.Fatal(err)
		}
		if stats, err := session.Stats(); err != nil || stats.Requests != 0 {
			t.Fatal(stats, err)
		}
	})
}

func TestErrors(t *testing.T) {
	everywhere(t, Options{VocabSize: width}, func(t *testing.T, session *Session) {
		_, err := session.Add(Request{Processors: []Processor{Builtin("no_such", nil)}})
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != NotFound || !errors.Is(err, NotFound) || errors.Is(err, Internal) {
			t.Fatal(err)
		}
		if !strings.Contains(err.Error(), "not found") || !strings.Contains(err.Error(), "no_such") {
			t.Fatal(err)
		}
		admissions, err := session.AddAll([]Request{
			{Processors: []Processor{banning(1)}}, {PromptIDs: []int32{width}}, {Processors: []Processor{banning(2)}},
		})
		if err != nil || admissions[0].Err != nil || admissions[2].Err != nil {
			t.Fatal(admissions, err)
		}
		if !errors.Is(admissions[1].Err, InvalidArgument) || admissions[1].Handle != 0 {
			t.Fatal(admissions[1])
		}
		if _, err := session.Add(Request{SamplingParams: make(chan int)}); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		if err := session.Remove(12345); !errors.Is(err, NotFound) {
			t.Fatal(err)
		}
		one := StepRequest{Handle: admissions[0].Handle, NewIDs: []int32{-1}}
		step := mustStep(t, session, nil, one)
		if _, err := step.Apply(make([]float32, width-1)); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		if _, err := step.ApplyBits(make([]uint16, width)); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		if _, err := step.ApplyBuffer(make([]byte, 4*width+1)[1:]); !errors.Is(err, InvalidArgument) {
			t.Fatal(err) // not aligned
		}
		result, err := step.Apply(make([]float32, width))
		if err != nil || !errors.Is(result.Failures[one.Handle], InvalidArgument) {
			t.Fatal(result, err)
		}
		if _, err := step.Apply(make([]float32, width)); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		tree := StepRequest{Handle: admissions[2].Handle, DraftIDs: []int32{1}, DraftParents: []int32{-1, 0}}
		if _, err := session.Step([]StepRequest{tree}, nil); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		if _, err := session.Step([]StepRequest{{Handle: tree.Handle}}, []Row{{1, 0}}); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
		if _, err := session.Step([]StepRequest{{Handle: tree.Handle}}, []Row{}); !errors.Is(err, InvalidArgument) {
			t.Fatal(err)
		}
	})
	if _, err := Open("127.0.0.1:1", Options{VocabSize: width, Timeout: time.Second}); !errors.Is(err, Unavailable) {
		t.Fatal(err)
	}
	if _, err := OpenEmbedded(Options{}); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if text := Code(99).Error(); text != "code 99" {
		t.Fatal(text)
	}
}

func TestDatatypesAndBuffers(t *testing.T) {
	for datatype, minusInfinity := range map[Datatype]uint16{Float16: 0xfc00, BFloat16: 0xff80} {
		everywhere(t, Options{VocabSize: width, Datatype: datatype}, func(t *testing.T, session *Session) {
			handle := mustAdd(t, session, Request{Processors: []Processor{banning(7)}})
			bits := make([]uint16, width)
			if _, err := mustStep(t, session, nil, StepRequest{Handle: handle}).ApplyBits(bits); err != nil {
				t.Fatal(err)
			}
			if bits[7] != minusInfinity || bits[6] != 0 {
				t.Fatal(bits)
			}
			buffer, err := session.LogitsBuffer(1)
			if err != nil || len(buffer) != 2*width {
				t.Fatal(len(buffer), err)
			}
			for index := range buffer {
				buffer[index] = 0
			}
			if _, err := mustStep(t, session, nil, StepRequest{Handle: handle}).ApplyBuffer(buffer); err != nil {
				t.Fatal(err)
			}
			if uint16(buffer[14])|uint16(buffer[15])<<8 != minusInfinity {
				t.Fatal(buffer)
			}
		})
	}
}

func TestEventsAndDeniedRows(t *testing.T) {
	everywhere(t, Options{VocabSize: 3}, func(t *testing.T, session *Session) {
		all := mustAdd(t, session, Request{Processors: []Processor{banning(0, 1, 2)}})
		pairs := Builtin("no_repeat_ngram", map[string]int{"ngram_size": 2})
		repeating := mustAdd(t, session, Request{Processors: []Processor{pairs}})
		requests := []StepRequest{{Handle: all}, {Handle: repeating, NewIDs: []int32{1, 2, 1}}}
		result, err := mustStep(t, session, nil, requests...).Apply(make([]float32, 6))
		if err != nil || !equal(result.AllDeniedRows, 0) {
			t.Fatal(result, err)
		}
		if len(result.Events) != 1 || result.Events[0].Handle != repeating || result.Events[0].Position != 3 {
			t.Fatal(result.Events)
		}
		if event := result.Events[0]; event.Processor != "no_repeat_ngram" || event.Name != "ids_denied" {
			t.Fatal(event)
		}
	})
}

func TestClosedAndCancelledSessions(t *testing.T) {
	everywhere(t, Options{VocabSize: width, Reconnect: -1}, func(t *testing.T, session *Session) {
		handle := mustAdd(t, session, Request{})
		step := mustStep(t, session, nil, StepRequest{Handle: handle})
		session.Cancel()
		if _, err := step.Apply(make([]float32, width)); !errors.Is(err, Unavailable) {
			t.Fatal(err)
		}
		for range [2]int{} {
			if err := session.Close(); err != nil {
				t.Fatal(err)
			}
		}
		session.Cancel()
		if _, err := step.Apply(make([]float32, width)); !errors.Is(err, SessionClosed) {
			t.Fatal(err)
		}
		if _, err := session.Add(Request{}); !errors.Is(err, SessionClosed) {
			t.Fatal(err)
		}
	})
}

func TestManyGoroutines(t *testing.T) {
	everywhere(t, Options{VocabSize: width}, func(t *testing.T, session *Session) {
		var group sync.WaitGroup
		for number := 0; number < 8; number++ {
			group.Add(1)
			go func(number int) {
				defer group.Done()
				for round := 0; round < 50; round++ {
					admission, err := session.Add(Request{Processors: []Processor{banning(number)}})
					if err != nil {
						t.Error(err)
						return
					}
					if err := session.Remove(admission.Handle); err != nil {
						t.Error(err)
					}
				}
			}(number)
		}
		group.Wait()
		if stats, err := session.Stats(); err != nil || stats.Requests != 0 {
			t.Fatal(stats, err)
		}
	})
}

func TestForgottenSessionsAreClosed(t *testing.T) {
	finalized := make(chan struct{})
	func() {
		session, err := OpenEmbedded(Options{VocabSize: width})
		if err != nil {
			t.Fatal(err)
		}
		runtime.SetFinalizer(session, nil)
		runtime.SetFinalizer(session, func(session *Session) {
			session.Close()
			close(finalized)
		})
	}()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		runtime.GC()
		select {
		case <-finalized:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("a session without references was not finalized")
}

func TestTheArenaReusesItsMemory(t *testing.T) {
	var a arena
	defer a.free()
	for _, size := range []int{10, 5000, 100_000} {
		for range [3]int{} {
			values := make([]int32, size)
			for index := range values {
				values[index] = int32(index)
			}
			before, _ := a.ids(values)
			_ = a.text(strings.Repeat("x", size))
			after, count := a.ids(values)
			if *before != 0 || *after != 0 || int(count) != size {
				t.Fatal("the copies differ")
			}
		}
		a.reset()
		if len(a.earlier) != 0 || a.used != 0 {
			t.Fatal("memory is left")
		}
	}
	blocks := testing.AllocsPerRun(100, func() {
		a.reset()
		a.ids([]int32{1, 2, 3})
	})
	if blocks != 0 {
		t.Fatal(blocks)
	}
}
